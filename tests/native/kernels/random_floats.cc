#include "random_floats.h"

namespace antiphon::kernels {

std::vector<float> random_floats(std::mt19937& random, std::int64_t count, float scale) {
  constexpr float kRootOfSix = 2.4494897F;  // a sum of two has a sixth of its range's square
  const float unit = scale * kRootOfSix / 65536;
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) {
    const auto bits = static_cast<std::uint32_t>(random());
    value = (static_cast<float>((bits & 0xFFFFU) + (bits >> 16U)) - 65535) * unit;
  }
  return values;
}

}  // namespace antiphon::kernels
