// Products of bfloat16 pairs with AVX-512.
#include "products.h"

namespace antiphon::kernels {
namespace {

// `count` rows by a pair's 32 outputs.
template <int count>
void multiply_rows(const Product& product, const std::uint16_t* rows, float* sums,
                   Prefetching& prefetching) {
  __m512 totals[count][2];
  for (int r = 0; r < count; ++r) {
    for (int half = 0; half < 2; ++half) {
      totals[r][half] = product.continues ? _mm512_load_ps(sums + r * kPair + half * kPanel)
                                          : _mm512_setzero_ps();
    }
  }
  const std::byte* tile = product.tiles;
  for (std::int64_t slice = 0; slice < product.num_slices; ++slice) {
    prefetching.step();
#pragma GCC unroll 2
    for (int p = 0; p < kSlice / 2; ++p) {
      const auto first = (__m512bh)_mm512_load_si512(tile + p * 64);
      const auto second = (__m512bh)_mm512_load_si512(tile + kTile * 2 + p * 64);
#pragma GCC unroll 8
      for (int r = 0; r < count; ++r) {
        std::int32_t pair = 0;
        __builtin_memcpy(&pair, rows + r * product.row_stride + 2 * p, sizeof(pair));
        const auto inputs = (__m512bh)_mm512_set1_epi32(pair);
        totals[r][0] = _mm512_dpbf16_ps(totals[r][0], first, inputs);
        totals[r][1] = _mm512_dpbf16_ps(totals[r][1], second, inputs);
      }
    }
    rows += kSlice;
    tile += 2 * kTile * 2;
  }
  for (int r = 0; r < count; ++r) {
    _mm512_store_ps(sums + r * kPair, totals[r][0]);
    _mm512_store_ps(sums + r * kPair + kPanel, totals[r][1]);
  }
}

void multiply(const Product& product) {
  const auto* rows = static_cast<const std::uint16_t*>(product.rows);
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

constexpr ProductKernels kKernels = avx512_bf16::kernels_with(multiply, [](std::int64_t) {}, [] {});

}  // namespace

const ProductKernels& avx512_bf16_kernels() { return kKernels; }

}  // namespace antiphon::kernels
