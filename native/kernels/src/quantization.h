// Weights as integers with scales.
#pragma once

#include <array>
#include <cstdint>

#include "antiphon/kernels/packed_matrix.h"

namespace antiphon::kernels {

inline constexpr int kSliceLength = 32;

// 32 weights of a row, scale * value + offset each. kInt8 and kInt6 have no offset of their own:
// theirs is -128 or -32 scales. kInt6 has a scale for each half, the others have one twice.
struct QuantizedSlice {
  std::array<std::uint8_t, kSliceLength> values;
  std::array<float, 2> scales;
  float offset;
};

// By what a row's scales are divided so that float16 holds them well: a power of two. `largest` is
// the largest of them, or of what is to be quantized.
float row_scale_for(float largest);

// The nearest value that the row can store.
float storable(float scale, float row_scale);

// Quantizes 32 weights. The scales come out as storable ones.
QuantizedSlice quantize(const float* weights, WeightFormat format, float row_scale);

// The weight k of a slice, rounded once.
float value_of(const QuantizedSlice& slice, WeightFormat format, int k);

// The weight k as products of bfloat16 take it. Kernels cut 16 bits off instead of rounding, which
// is half the work: so that errors are as often up as down, weights are stretched by a third of a
// bfloat16's last place at most before. What is a bfloat16 already stays, and any other is off by
// two thirds of a last place at most.
inline constexpr float kStretch = 1.0F + 1.0F / 384;
// The bits of a stretched scale that count where values lie around 0: with 13 of them its products
// with integers need no rounding, so kernels may add and take away what they like on the way.
inline constexpr int kShortFactor = ~0x7FF;
float cut_value_of(const QuantizedSlice& slice, WeightFormat format, int k);

}  // namespace antiphon::kernels
