#include "antiphon/kernels/likeliest.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <stdexcept>
#include <vector>

namespace antiphon::kernels {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<std::int32_t> Find(const std::vector<float>& values, std::int64_t num_rows,
                               std::int64_t width, int num_threads = 2) {
  ThreadTeam team(num_threads);
  TaskCursor cursor;
  LikeliestWorkspace workspace(num_rows, width);
  std::vector<std::int32_t> columns(static_cast<std::size_t>(num_rows), -1);
  const Rows rows = {values.data(), Type::kF32, num_rows, width};
  for (int run = 0; run < 2; ++run) {  // the second finds the workspace as the first left it
    cursor.reset();
    std::fill(columns.begin(), columns.end(), -1);
    team.run(
        [&](Worker& worker) { find_likeliest(worker, cursor, workspace, rows, columns.data()); });
  }
  return columns;
}

TEST(Likeliest, IsWhereTheFirstOfTheLargestStands) {
  std::mt19937 random(1);
  for (const std::int64_t width : {1, 63, 64, 100, 4096, 4097, 20000}) {
    for (const int num_levels : {3, 1 << 20}) {  // few: many are equal
      constexpr std::int64_t kRows = 5;
      std::vector<float> values(static_cast<std::size_t>(kRows * width));
      std::uniform_int_distribution<int> level(-num_levels, 0);
      std::generate(values.begin(), values.end(),
                    [&] { return static_cast<float>(level(random)); });

      const std::vector<std::int32_t> found = Find(values, kRows, width);

      for (std::int64_t row = 0; row < kRows; ++row) {
        const auto begin = values.begin() + row * width;
        EXPECT_EQ(found[static_cast<std::size_t>(row)],
                  std::max_element(begin, begin + width) - begin)
            << width << " columns, row " << row;
      }
    }
  }
}

TEST(Likeliest, IsNeverWhatIsNoNumber) {
  std::vector<float> values(10000, kNan);
  EXPECT_EQ(Find(values, 1, 10000)[0], 0);

  values[9000] = -1e30F;
  EXPECT_EQ(Find(values, 1, 10000)[0], 9000);

  values[4500] = -std::numeric_limits<float>::infinity();
  EXPECT_EQ(Find(values, 1, 10000)[0], 9000);
}

TEST(Likeliest, RefusesRowsThatItHasNoRoomFor) {
  ThreadTeam team(1);
  TaskCursor cursor;
  LikeliestWorkspace workspace(1, 8);
  const std::vector<float> values(16);
  std::int32_t columns[2];

  for (const Rows& rows :
       {Rows{values.data(), Type::kF32, 2, 8}, Rows{values.data(), Type::kBf16, 1, 8}}) {
    EXPECT_THROW(
        team.run([&](Worker& worker) { find_likeliest(worker, cursor, workspace, rows, columns); }),
        std::invalid_argument);
  }
}

}  // namespace
}  // namespace antiphon::kernels
