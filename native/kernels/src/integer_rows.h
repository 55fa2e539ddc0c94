// Rows as integers, for products of integers: 32 inputs at a time have one scale. A row's own
// largest values decide its scales, so rows beside it change nothing.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "bfloat16.h"
#include "product_kernels.h"
#include "tile_layout.h"

namespace antiphon::kernels {

// 32 inputs of a row, `scale` times `values`.
struct IntegerInputs {
  std::int8_t values[kSlice];  // the nearest, -127 to 127
  float scale;                 // no number or infinite where one of the inputs is
  float sum;                   // of the inputs as they are here
  // By how much sums of products are too large for each level that weights are stored too high.
  std::int32_t excess;
  std::int32_t excess_of_second_half;
};
static_assert(sizeof(IntegerInputs) == 48);

namespace integer_rows {

inline float to_float(float value) { return value; }
inline float to_float(std::uint16_t value) { return from_bf16(value); }

template <class Source>
__attribute__((always_inline)) inline void quantize_inputs(const Source* inputs,
                                                           IntegerInputs* out) {
  constexpr float kLevels = 127;
  constexpr float kLeast = 0x1p-100F;  // below it the inverse would be infinite, and all is 0
  float values[kSlice];
  std::uint32_t largest_bits = 0;
  for (int k = 0; k < kSlice; ++k) {
    values[k] = to_float(inputs[k]);
    // As integers, magnitudes are in their order, and what is no number stands above infinity.
    largest_bits = std::max(largest_bits, std::bit_cast<std::uint32_t>(values[k]) & 0x7FFFFFFFU);
  }
  const auto largest = std::bit_cast<float>(largest_bits);
  const bool is_nothing = largest < kLeast;
  const float inverse = is_nothing ? 0 : kLevels / largest;
  // Its last place is 1: adding it rounds to the nearest integer, once.
  constexpr float kRounding = 0x1.8p23F;
  std::int32_t sums[2] = {};
  for (int half = 0; half < 2; ++half) {
    for (int k = half * 16; k < half * 16 + 16; ++k) {
      const auto bits = std::bit_cast<std::uint32_t>(std::fma(values[k], inverse, kRounding));
      const auto level = static_cast<std::int8_t>(bits - std::bit_cast<std::uint32_t>(kRounding));
      out->values[k] = level;
      sums[half] += level;
    }
  }
  out->scale = is_nothing ? 0 : largest / kLevels;
  out->sum = out->scale * static_cast<float>(sums[0] + sums[1]);
  out->excess = sums[0] + sums[1];
  out->excess_of_second_half = sums[1];
}

template <class Source>
__attribute__((always_inline)) inline void arrange_rows(const Arranging& work) {
  const auto* row = static_cast<const Source*>(work.rows);
  auto* out = static_cast<IntegerInputs*>(work.arranged);
  for (std::int64_t r = 0; r < work.num_rows; ++r, row += work.row_stride) {
    for (std::int64_t slice = 0; slice < work.num_slices; ++slice, ++out) {
      quantize_inputs(row + slice * kSlice, out);
    }
  }
}

// For sources of each instruction set: loops as these become its vectors.
__attribute__((always_inline)) inline void arrange(const Arranging& work) {
  if (work.type == Type::kF32) {
    arrange_rows<float>(work);
  } else {
    arrange_rows<std::uint16_t>(work);
  }
}

}  // namespace integer_rows
}  // namespace antiphon::kernels
