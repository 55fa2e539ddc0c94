// Products in float32 with AVX-512.
#include "../finish_rows.h"
#include "../float_products.h"
#include "unpack_tiles.h"
#include "vector_math.h"

namespace antiphon::kernels {
namespace {

using avx512::Integers;
using avx512::Line;
using avx512::line_of;
using avx512::unrolled;

template <WeightFormat format>
__attribute__((always_inline)) inline void unpack_tile(const std::byte* weights,
                                                       const std::byte* scales,
                                                       const float* row_scales, float* tile) {
  const __m512 rows = _mm512_loadu_ps(row_scales);
  const Line lines[] = {line_of<format>(scales, rows, 0), line_of<format>(scales, rows, 1)};
  unrolled(avx512::kPairsOfSlice, [&](auto p) __attribute__((always_inline)) {
    const Line& line = lines[format == WeightFormat::kInt6 ? p / 8 : 0];
    const __m512 even = Integers<format>::template values<0, p>(weights);
    const __m512 odd = Integers<format>::template values<1, p>(weights);
    _mm512_store_ps(tile + 2 * p * kPanel, _mm512_fmadd_ps(even, line.factor, line.addend));
    _mm512_store_ps(tile + (2 * p + 1) * kPanel, _mm512_fmadd_ps(odd, line.factor, line.addend));
  });
}

template <WeightFormat format>
void unpack_integers(const Unpacking& work) {
  Prefetching prefetching(work.upcoming, work.num_slices);
  const std::byte* block = work.blocks;
  auto* tile = static_cast<float*>(work.tiles);
  for (std::int64_t slice = 0; slice < work.num_slices; ++slice) {
    prefetching.step();
    for (int half = 0; half < 2; ++half, tile += kTile) {
      unpack_tile<format>(tile_weights(block, format, half), tile_scales(block, format, half),
                          work.row_scales + half * kPanel, tile);
    }
    block += block_bytes(format);
  }
}

void unpack_bf16(const Unpacking& work) {
  Prefetching prefetching(work.upcoming, work.num_slices);
  const std::byte* block = work.blocks;
  auto* tile = static_cast<float*>(work.tiles);
  for (std::int64_t slice = 0; slice < work.num_slices; ++slice) {
    prefetching.step();
    for (int i = 0; i < 2 * kSlice; ++i, block += 32, tile += kPanel) {
      const __m256i halves = _mm256_load_si256(reinterpret_cast<const __m256i*>(block));
      _mm512_store_si512(tile, _mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
    }
  }
}

constexpr ProductKernels kKernels = {
    Type::kF32,
    {nullptr, unpack_bf16, unpack_integers<WeightFormat::kInt8>,
     unpack_integers<WeightFormat::kInt6>, unpack_integers<WeightFormat::kInt5>,
     unpack_integers<WeightFormat::kInt4>},
    float_products::multiply<avx512::FloatVector, 8>,
    finishing::finish_rows<avx512::FloatVector>,
    [](std::int64_t) {},
    [] {},
};

}  // namespace

const ProductKernels& avx512_kernels() { return kKernels; }

}  // namespace antiphon::kernels
