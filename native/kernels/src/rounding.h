#pragma once

#include <cstdint>

namespace antiphon::kernels {

constexpr std::int64_t divide_up(std::int64_t value, std::int64_t by) {
  return (value + by - 1) / by;
}
constexpr std::int64_t round_up(std::int64_t value, std::int64_t to) {
  return divide_up(value, to) * to;
}

}  // namespace antiphon::kernels
