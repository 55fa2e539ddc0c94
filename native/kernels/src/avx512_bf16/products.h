// Tiles of bfloat16 pairs and products' ends, for sources that have AVX-512 with bfloat16.
#pragma once

#include "../avx512/unpack_tiles.h"
#include "../avx512/vector_math.h"
#include "../finish_rows.h"

namespace antiphon::kernels::avx512_bf16 {

// A line for the lanes of pairs: outputs 0 to 7, or 8 to 15, each twice.
__attribute__((always_inline)) inline avx512::Line twice(const avx512::Line& line, int h) {
  const __m512i lanes = _mm512_add_epi32(
      _mm512_set_epi32(7, 7, 6, 6, 5, 5, 4, 4, 3, 3, 2, 2, 1, 1, 0, 0), _mm512_set1_epi32(8 * h));
  return {_mm512_permutexvar_ps(lanes, line.factor), _mm512_permutexvar_ps(lanes, line.addend)};
}

template <WeightFormat format>
__attribute__((always_inline)) inline void unpack_tile(const std::byte* weights,
                                                       const std::byte* scales,
                                                       const float* row_scales, std::byte* tile) {
  constexpr bool kInHalves = format == WeightFormat::kInt6;
  const __m512 rows = _mm512_loadu_ps(row_scales);
  avx512::Line lines[2][2];
  for (int second = 0; second < (kInHalves ? 2 : 1); ++second) {
    const avx512::Line line = avx512::line_of<format>(scales, rows, second);
    lines[second][0] = twice(line, 0);
    lines[second][1] = twice(line, 1);
  }
  avx512::unrolled<16>([&](auto p) {
    using Values = avx512::Integers<format>;
    const avx512::Line(&line)[2] = lines[kInHalves ? p / 8 : 0];
    const __m512 low =
        _mm512_fmadd_ps(Values::template values<0, p>(weights), line[0].factor, line[0].addend);
    const __m512 high =
        _mm512_fmadd_ps(Values::template values<1, p>(weights), line[1].factor, line[1].addend);
    _mm512_store_si512(tile + p * 64, (__m512i)_mm512_cvtne2ps_pbh(high, low));
  });
}

template <WeightFormat format>
void unpack_integers(const Unpacking& work) {
  Prefetching prefetching(work.upcoming, work.num_slices);
  const std::byte* block = work.blocks;
  auto* tile = static_cast<std::byte*>(work.tiles);
  for (std::int64_t slice = 0; slice < work.num_slices; ++slice) {
    prefetching.step();
    for (int half = 0; half < 2; ++half, tile += kTile * 2) {
      unpack_tile<format>(tile_weights(block, format, half), tile_scales(block, format, half),
                          work.row_scales + half * kPanel, tile);
    }
    block += block_bytes(format);
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
