// Products of float32 rows with float32 tiles, for the vectors of any instruction set.
#pragma once

#include <cstdint>

#include "prefetching.h"
#include "product_kernels.h"
#include "tile_layout.h"

namespace antiphon::kernels::float_products {

// `count` rows by a pair's 32 outputs, all of their sums in registers.
template <class Vector, int count>
void multiply_rows(const Product& product, const float* rows, float* sums,
                   Prefetching& prefetching) {
  constexpr int kOfPanel = kPanel / Vector::kLanes;
  constexpr int kVectors = 2 * kOfPanel;
  Vector totals[count][kVectors];
  for (int r = 0; r < count; ++r) {
    for (int v = 0; v < kVectors; ++v) {
      totals[r][v] =
          product.continues ? Vector::load(sums + r * kPair + v * Vector::kLanes) : Vector::set(0);
    }
  }
  const auto* tile = reinterpret_cast<const float*>(product.tiles);
  for (std::int64_t slice = 0; slice < product.num_slices; ++slice) {
    prefetching.step();
    for (int k = 0; k < kSlice; ++k) {
      Vector inputs[count];
      for (int r = 0; r < count; ++r) {
        inputs[r] = Vector::set(rows[r * product.row_stride + k]);
      }
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        const Vector weights =
            Vector::load(tile + v / kOfPanel * kTile + k * kPanel + v % kOfPanel * Vector::kLanes);
#pragma GCC unroll 8
        for (int r = 0; r < count; ++r) {
          totals[r][v] = Vector::fma(inputs[r], weights, totals[r][v]);
        }
      }
    }
    rows += kSlice;
    tile += 2 * kTile;
  }
  for (int r = 0; r < count; ++r) {
    for (int v = 0; v < kVectors; ++v) {
      totals[r][v].store(sums + r * kPair + v * Vector::kLanes);
    }
  }
}

// Blocks of `count` rows, then of fewer.
template <class Vector, int count>
void multiply_blocks(const Product& product, std::int64_t first, Prefetching& prefetching) {
  const auto* const rows = static_cast<const float*>(product.rows);
  for (; first + count <= product.num_rows; first += count) {
    multiply_rows<Vector, count>(product, rows + first * product.row_stride,
                                 product.sums + first * kPair, prefetching);
  }
  if constexpr (count > 1) {
    multiply_blocks<Vector, count / 2>(product, first, prefetching);
  }
}

// `count` is how many rows' sums fit the registers.
template <class Vector, int count>
void multiply(const Product& product) {
  Prefetching prefetching(product.upcoming,
                          product.num_slices * divide_up(product.num_rows, count));
  multiply_blocks<Vector, count>(product, 0, prefetching);
}

}  // namespace antiphon::kernels::float_products
