#include "antiphon/random.h"

#include <gtest/gtest.h>

#include <set>

namespace antiphon {
namespace {

TEST(Uniform, IsInTheUnitIntervalAndHasTheRightMean) {
  double sum = 0;
  for (std::uint32_t position = 0; position < 10'000; ++position) {
    const double value = Uniform(/*seed=*/5, /*output_index=*/0, position);
    ASSERT_GE(value, 0.0);
    ASSERT_LT(value, 1.0);
    sum += value;
  }

  EXPECT_NEAR(sum / 10'000, 0.5, 0.01);
}

TEST(Uniform, FirstDrawsOfSmallSeedsAreSpreadOut) {
  int num_low = 0;
  for (std::uint64_t seed = 0; seed < 1'000; ++seed) {
    if (Uniform(seed, 0, 0) < 0.001) ++num_low;
  }

  EXPECT_GT(Uniform(0, 0, 0), 0.001);
  EXPECT_LE(num_low, 6);
}

TEST(Uniform, EveryCoordinateMatters) {
  std::set<double> values;
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    for (std::uint32_t index = 0; index < 10; ++index) {
      for (std::uint32_t position = 0; position < 10; ++position) {
        values.insert(Uniform(seed, index, position));
      }
    }
  }

  EXPECT_EQ(values.size(), 1000U);
}

TEST(Uniform, NeighbouringSeedsAreUncorrelated) {
  double sum = 0;
  for (std::uint64_t seed = 0; seed < 10'000; ++seed) {
    sum += (Uniform(seed, 0, 0) - 0.5) * (Uniform(seed + 1, 0, 0) - 0.5);
  }

  EXPECT_NEAR(sum / 10'000, 0.0, 0.005);
}

}  // namespace
}  // namespace antiphon
