#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace antiphon::kernels {

inline float from_f16(std::uint16_t value) {
  const std::uint32_t sign = (value & 0x8000U) << 16U;
  const std::uint32_t rest = value & 0x7FFFU;
  if (rest >= 0x7C00U) {  // infinite, or no number
    return std::bit_cast<float>(sign | 0x7F800000U | (rest & 0x3FFU) << 13U);
  }
  // The exponents' offsets differ by 112; a multiplication does subnormal numbers as well.
  const float magnitude = std::bit_cast<float>(rest << 13U) * 0x1p112F;
  return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(magnitude));
}

// The nearest float16, the even one of two, infinite beyond 65519; what is no number stays none.
inline std::uint16_t to_f16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>(bits >> 16U & 0x8000U);
  const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
  if (magnitude > 0x7F800000U) {
    return sign | 0x7E00U;
  }
  if (magnitude >= 0x477FF000U) {
    return sign | 0x7C00U;
  }
  if (magnitude < 0x38800000U) {  // subnormal: adding 0.5 rounds where the last bit is
    const float shifted = std::bit_cast<float>(magnitude) + 0.5F;
    return sign | static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(shifted) - 0x3F000000U);
  }
  return sign | static_cast<std::uint16_t>(
                    (magnitude - 0x38000000U + 0xFFFU + (magnitude >> 13U & 1U)) >> 13U);
}

}  // namespace antiphon::kernels
