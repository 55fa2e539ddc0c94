// Asks memory for what comes next, evenly over the work that is done meanwhile.
#pragma once

#include <cstdint>

#include "product_kernels.h"
#include "rounding.h"

namespace antiphon::kernels {

class Prefetching {
 public:
  Prefetching(const Upcoming& upcoming, std::int64_t num_steps)
      : next_(upcoming.first),
        end_(upcoming.first + upcoming.num_bytes),
        bytes_of_step_(round_up(divide_up(upcoming.num_bytes, num_steps), kLine)) {}

  void step() {
    const std::byte* const end = end_ - next_ < bytes_of_step_ ? end_ : next_ + bytes_of_step_;
    for (; next_ < end; next_ += kLine) {
      __builtin_prefetch(next_, 0, 2);  // into the second cache
    }
  }

 private:
  static constexpr std::int64_t kLine = 64;

  const std::byte* next_;
  const std::byte* end_;
  std::int64_t bytes_of_step_;
};

}  // namespace antiphon::kernels
