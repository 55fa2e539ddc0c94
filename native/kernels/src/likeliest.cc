#include "antiphon/kernels/likeliest.h"

#include <algorithm>
#include <array>
#include <limits>
#include <stdexcept>

#include "rounding.h"

namespace antiphon::kernels {

namespace {

// Read in a microsecond or less, and looked through once more where it has the largest.
constexpr std::int64_t kPart = 4096;  // columns
constexpr float kLeast = -std::numeric_limits<float>::infinity();

float largest(const float* values, std::int64_t size) {
  constexpr std::int64_t kLanes = 64;
  std::array<float, kLanes> lanes;
  lanes.fill(kLeast);
  std::int64_t first = 0;
  for (; first + kLanes <= size; first += kLanes) {
    for (std::int64_t lane = 0; lane < kLanes; ++lane) {
      const float value = values[first + lane];
      lanes[lane] = value > lanes[lane] ? value : lanes[lane];
    }
  }
  float found = kLeast;
  for (const float value : lanes) {
    found = value > found ? value : found;
  }
  for (; first < size; ++first) {
    found = values[first] > found ? values[first] : found;
  }
  return found;
}

}  // namespace

LikeliestWorkspace::LikeliestWorkspace(std::int64_t max_rows, std::int64_t width)
    : max_rows_(max_rows),
      width_(width),
      num_parts_(divide_up(width, kPart)),
      maxima_(std::make_unique<float[]>(static_cast<std::size_t>(max_rows * num_parts_))),
      num_done_(std::make_unique<std::atomic<std::int64_t>[]>(static_cast<std::size_t>(max_rows))) {
}

void LikeliestWorkspace::reset() {
  for (std::int64_t row = 0; row < max_rows_; ++row) {
    num_done_[row].store(0, std::memory_order_relaxed);
  }
}

void find_likeliest(Worker& /*worker*/, TaskCursor& cursor, LikeliestWorkspace& workspace,
                    const Rows& rows, std::int32_t* columns) {
  if (rows.type != Type::kF32 || rows.num_rows > workspace.max_rows_) {
    throw std::invalid_argument("likeliest takes float32 rows, and no more than it has room for");
  }
  const std::int64_t num_parts = workspace.num_parts_;
  const std::int64_t num_tasks = rows.num_rows * num_parts;
  for (std::int64_t task = cursor.next(); task < num_tasks; task = cursor.next()) {
    const std::int64_t row = task / num_parts;
    const float* const values = static_cast<const float*>(rows.data) + row * rows.stride;
    const auto part_size = [&](std::int64_t part) {
      return std::min(kPart, workspace.width_ - part * kPart);
    };
    const std::int64_t part = task % num_parts;
    float* const maxima = workspace.maxima_.get() + row * num_parts;
    maxima[part] = largest(values + part * kPart, part_size(part));
    if (workspace.num_done_[row].fetch_add(1, std::memory_order_acq_rel) + 1 < num_parts) {
      continue;
    }
    // Whoever looked at a row's last part ends the row.
    workspace.num_done_[row].store(0, std::memory_order_relaxed);
    const std::int64_t best = std::max_element(maxima, maxima + num_parts) - maxima;
    const float* const begin = values + best * kPart;
    const float* const end = begin + part_size(best);
    const float* const found = std::find(begin, end, maxima[best]);
    columns[row] = found == end ? 0 : static_cast<std::int32_t>(found - values);
  }
}

}  // namespace antiphon::kernels
