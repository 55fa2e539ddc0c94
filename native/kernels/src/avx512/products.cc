// Products in float32 with AVX-512.
#include "../finish_rows.h"
#include "unpack_tiles.h"
#include "vector_math.h"

namespace antiphon::kernels {
namespace {

using avx512::Integers;
using avx512::Line;
using avx512::line_of;
using avx512::unrolled;

template <WeightFormat format>
void unpack_tile(const std::byte* weights, const std::byte* scales, const float* row_scales,
                 float* tile) {
  const __m512 rows = _mm512_loadu_ps(row_scales);
  const Line lines[] = {line_of<format>(scales, rows, 0), line_of<format>(scales, rows, 1)};
  unrolled<16>([&](auto p) {
    const Line& line = lines[format == WeightFormat::kInt6 ? p / 8 : 0];
    unrolled<2>([&](auto h) {
      const __m512 values = Integers<format>::template values<h, p>(weights);
      _mm512_store_ps(tile + (2 * p + h) * kPanel,
                      _mm512_fmadd_ps(values, line.factor, line.addend));
    });
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

// `count` rows by a pair's 32 outputs.
template <int count>
void multiply_rows(const Product& product, const float* rows, float* sums,
                   Prefetching& prefetching) {
  __m512 totals[count][2];
  for (int r = 0; r < count; ++r) {
    for (int half = 0; half < 2; ++half) {
      totals[r][half] = product.continues ? _mm512_load_ps(sums + r * kPair + half * kPanel)
                                          : _mm512_setzero_ps();
    }
  }
  const auto* tile = reinterpret_cast<const float*>(product.tiles);
  for (std::int64_t slice = 0; slice < product.num_slices; ++slice) {
    prefetching.step();
#pragma GCC unroll 2
    for (int k = 0; k < kSlice; ++k) {
      const __m512 first = _mm512_load_ps(tile + k * kPanel);
      const __m512 second = _mm512_load_ps(tile + kTile + k * kPanel);
#pragma GCC unroll 8
      for (int r = 0; r < count; ++r) {
        const __m512 input = _mm512_set1_ps(rows[r * product.row_stride + k]);
        totals[r][0] = _mm512_fmadd_ps(input, first, totals[r][0]);
        totals[r][1] = _mm512_fmadd_ps(input, second, totals[r][1]);
      }
    }
    rows += kSlice;
    tile += 2 * kTile;
  }
  for (int r = 0; r < count; ++r) {
    _mm512_store_ps(sums + r * kPair, totals[r][0]);
    _mm512_store_ps(sums + r * kPair + kPanel, totals[r][1]);
  }
}

void multiply(const Product& product) {
  const auto* rows = static_cast<const float*>(product.rows);
  float* sums = product.sums;
  const std::int64_t num_blocks = divide_up(product.num_rows, 8);
  Prefetching prefetching(product.upcoming, product.num_slices * num_blocks);
  const auto take = [&](auto count, std::int64_t& left) {
    for (; left >= count; left -= count) {
      multiply_rows<count>(product, rows, sums, prefetching);
      rows += count * product.row_stride;
      sums += count * kPair;
    }
  };
  std::int64_t left = product.num_rows;
  take(std::integral_constant<int, 8>{}, left);
  take(std::integral_constant<int, 4>{}, left);
  take(std::integral_constant<int, 2>{}, left);
  take(std::integral_constant<int, 1>{}, left);
}

constexpr ProductKernels kKernels = {
    Type::kF32,
    {nullptr, unpack_bf16, unpack_integers<WeightFormat::kInt8>,
     unpack_integers<WeightFormat::kInt6>, unpack_integers<WeightFormat::kInt5>,
     unpack_integers<WeightFormat::kInt4>},
    multiply,
    finishing::finish_rows<avx512::FloatVector>,
    [](std::int64_t) {},
    [] {},
};

}  // namespace

const ProductKernels& avx512_kernels() { return kKernels; }

}  // namespace antiphon::kernels
