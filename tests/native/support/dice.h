// Random numbers whose order depends on the seed alone, whatever the standard library.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "antiphon/random.h"

namespace antiphon::ghost {

class Dice {
 public:
  explicit Dice(std::uint64_t seed) : state_(Mix64(seed + kGoldenGamma)) {}

  std::uint64_t Bits() { return Mix64(state_ += kGoldenGamma); }

  // In [0, bound). REQUIRES: bound >= 1
  std::int32_t Below(std::int32_t bound) {
    return static_cast<std::int32_t>(Bits() % static_cast<std::uint64_t>(bound));
  }

  // In [low, high].
  std::int32_t Between(std::int32_t low, std::int32_t high) { return low + Below(high - low + 1); }

  double Unit() { return static_cast<double>(Bits() >> 11) * 0x1.0p-53; }
  bool Chance(double probability) { return Unit() < probability; }
  double Exponential(double mean) { return -mean * std::log1p(-Unit()); }

  // Around `median`; `spread` is the factor of one standard deviation.
  double LogNormal(double median, double spread) {
    const double radius = std::sqrt(2 * Exponential(1));
    return median * std::pow(spread, radius * std::cos(2 * 3.141592653589793 * Unit()));
  }

  template <typename T>
  void Shuffle(std::vector<T>& values) {
    for (std::size_t left = values.size(); left > 1; --left) {
      std::swap(values[left - 1], values[Bits() % left]);
    }
  }

 private:
  std::uint64_t state_;
};

}  // namespace antiphon::ghost
