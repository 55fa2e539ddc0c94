// Integers to tiles with AVX-512, for the sources that have that or more.
//
// A rotation brings a column's values to the top of a float's mantissa, a mask and an exponent make
// 1 + value / 2^bits of them, and one multiplication and addition make the weight of that:
// scale * value + offset, rounded once.
#pragma once

#include <immintrin.h>

#include <bit>
#include <cstdint>
#include <utility>

#include "../prefetching.h"
#include "../product_kernels.h"
#include "../tile_layout.h"

namespace antiphon::kernels::avx512 {

// Calls `f` with the constants in `numbers`.
template <class F, int... numbers>
__attribute__((always_inline)) inline void unrolled(std::integer_sequence<int, numbers...>, F f) {
  (f(std::integral_constant<int, numbers>{}), ...);
}

inline constexpr std::make_integer_sequence<int, 16> kPairsOfSlice;

// Factor and addend for 1 + value / 2^bits, of 16 lanes.
struct Line {
  __m512 factor;
  __m512 addend;
};

template <WeightFormat format>
struct Integers {
  static constexpr int kBits = value_bits(format);
  static constexpr int kTop = 23 - kBits;  // the lowest bit within the mantissa
  static constexpr int kLow = kBits == 8 ? 8 : 4;
  static constexpr int kPerWord = 32 / kLow;

  static __m512i word(const std::byte* tile, int index) {
    return _mm512_load_si512(tile + index * 64);
  }

  // 1 + value / 2^bits of the lanes of column `h`, number `p`.
  template <int h, int p>
  __attribute__((always_inline)) static __m512 values(const std::byte* tile) {
    constexpr int kPlace = p % kPerWord * kLow + word_rotation(format);
    constexpr int kMask = ((1 << kLow) - 1) << kTop;
    const __m512i one = _mm512_set1_epi32(0x3F800000);
    const __m512i low = rotated<kTop - kPlace>(word(tile, p / kPerWord * 2 + h));
    __m512i bits = masked_or(low, kMask, one);
    if constexpr (format == WeightFormat::kInt5) {
      bits = masked_or(rotated<22 - (16 * h + p)>(word(tile, 4)), 1 << 22, bits);
    } else if constexpr (format == WeightFormat::kInt6) {
      bits = masked_or(rotated<21 - 2 * p>(word(tile, 4 + h)), 3 << 21, bits);
    }
    return _mm512_castsi512_ps(bits);
  }

 private:
  template <int left>
  __attribute__((always_inline)) static __m512i rotated(__m512i words) {
    constexpr int kLeft = (left + 64) % 32;
    if constexpr (kLeft == 0) {
      return words;
    } else {
      return _mm512_rol_epi32(words, kLeft);
    }
  }
  // words & mask | bits
  __attribute__((always_inline)) static __m512i masked_or(__m512i words, int mask, __m512i bits) {
    return _mm512_ternarylogic_epi32(words, _mm512_set1_epi32(mask), bits, 0xEA);
  }
};

// The lines of a tile's outputs; `second` for the second half of the inputs.
template <WeightFormat format>
__attribute__((always_inline)) inline Line line_of(const std::byte* scales, __m512 row_scales,
                                                   int second) {
  const auto halves = [&](int index) {
    const auto* const at = reinterpret_cast<const __m256i*>(scales + index * 32);
    return _mm512_mul_ps(_mm512_cvtph_ps(_mm256_load_si256(at)), row_scales);
  };
  constexpr auto kRange = static_cast<float>(1 << value_bits(format));
  const bool in_halves = format == WeightFormat::kInt6;
  const __m512 scale = halves(in_halves ? second : 0);
  const __m512 factor = _mm512_mul_ps(scale, _mm512_set1_ps(kRange));
  if constexpr (format == WeightFormat::kInt8 || format == WeightFormat::kInt6) {
    return {factor, _mm512_mul_ps(scale, _mm512_set1_ps(-1.5F * kRange))};
  } else {
    return {factor, _mm512_sub_ps(halves(1), factor)};
  }
}

}  // namespace antiphon::kernels::avx512
