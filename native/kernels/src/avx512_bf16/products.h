// Tiles of bfloat16 pairs and products' ends, for sources that have AVX-512 with bfloat16.
#pragma once

#include "../avx512/unpack_tiles.h"
#include "../avx512/vector_math.h"
#include "../finish_rows.h"
#include "../quantization.h"

namespace antiphon::kernels::avx512_bf16 {

// Both values of a pair, cut to 16 bits, the even input's in the lower half.
__attribute__((always_inline)) inline __m512i cut_to_pairs(__m512 even, __m512 odd) {
  const __m512i low = _mm512_srli_epi32(_mm512_castps_si512(even), 16);
  const __m512i mask = _mm512_set1_epi32(static_cast<int>(0xFFFF0000U));
  // odd & mask | low
  return _mm512_ternarylogic_epi32(_mm512_castps_si512(odd), mask, low, 0xEA);
}

// As `cut_value_of` has it.
template <WeightFormat format>
__attribute__((always_inline)) inline avx512::Line stretched_line_of(const std::byte* scales,
                                                                     __m512 row_scales,
                                                                     int second) {
  const __m512 stretch = _mm512_set1_ps(kStretch);
  const avx512::Line line = avx512::line_of<format>(scales, row_scales, second);
  const __m512 factor = _mm512_mul_ps(line.factor, stretch);
  if constexpr (format == WeightFormat::kInt8 || format == WeightFormat::kInt6) {
    const __m512i short_factor =
        _mm512_and_si512(_mm512_castps_si512(factor), _mm512_set1_epi32(kShortFactor));
    const __m512 kept = _mm512_castsi512_ps(short_factor);
    return {kept, _mm512_mul_ps(kept, _mm512_set1_ps(-1.5F))};
  } else {
    return {factor, _mm512_mul_ps(line.addend, stretch)};
  }
}

template <WeightFormat format>
__attribute__((always_inline)) inline void unpack_tile(const std::byte* weights,
                                                       const std::byte* scales,
                                                       const float* row_scales, std::byte* tile) {
  constexpr bool kInHalves = format == WeightFormat::kInt6;
  const __m512 rows = _mm512_loadu_ps(row_scales);
  avx512::Line lines[2];
  for (int second = 0; second < (kInHalves ? 2 : 1); ++second) {
    lines[second] = stretched_line_of<format>(scales, rows, second);
  }
  avx512::unrolled(avx512::kPairsOfSlice, [&](auto p) __attribute__((always_inline)) {
    using Values = avx512::Integers<format>;
    const avx512::Line& line = lines[kInHalves ? p / 8 : 0];
    const __m512 even =
        _mm512_fmadd_ps(Values::template values<0, p>(weights), line.factor, line.addend);
    const __m512 odd =
        _mm512_fmadd_ps(Values::template values<1, p>(weights), line.factor, line.addend);
    _mm512_store_si512(tile + p * 64, cut_to_pairs(even, odd));
  });
}

// Both tiles of a block.
template <WeightFormat format>
__attribute__((always_inline)) inline void unpack_block(const std::byte* block,
                                                        const float* row_scales, std::byte* tiles) {
  for (int half = 0; half < 2; ++half) {
    unpack_tile<format>(tile_weights(block, format, half), tile_scales(block, format, half),
                        row_scales + half * kPanel, tiles + half * kTile * 2);
  }
}

template <WeightFormat format>
void unpack_integers(const Unpacking& work) {
  Prefetching prefetching(work.upcoming, work.num_slices);
  const std::byte* block = work.blocks;
  auto* tile = static_cast<std::byte*>(work.tiles);
  for (std::int64_t slice = 0; slice < work.num_slices; ++slice) {
    prefetching.step();
    unpack_block<format>(block, work.row_scales, tile);
    block += block_bytes(format);
    tile += 2 * kTile * 2;
  }
}

// All but the multiplication.
constexpr ProductKernels kernels_with(void (*multiply)(const Product&), void (*begin)(std::int64_t),
                                      void (*end)()) {
  return {
      Type::kBf16,
      {nullptr, nullptr, unpack_integers<WeightFormat::kInt8>, unpack_integers<WeightFormat::kInt6>,
       unpack_integers<WeightFormat::kInt5>, unpack_integers<WeightFormat::kInt4>},
      multiply,
      finishing::finish_rows<avx512::FloatVector>,
      begin,
      end,
  };
}

}  // namespace antiphon::kernels::avx512_bf16
