#include <immintrin.h>

#include "../attention_kernels.h"
#include "../attention_softmax.h"
#include "attention_pairs.h"

namespace antiphon::kernels::avx512_bf16 {

namespace {

constexpr int kTileRows = 6;
constexpr int kPairs = 16;  // of a vector

// Pairs of a matrix, `stride` pairs from row to row.
struct Pairs {
  const std::uint32_t* data;
  std::int64_t stride;
};

Pairs pairs(const void* data, std::int64_t stride) {
  return {static_cast<const std::uint32_t*>(data), stride};
}

__m512bh as_halves(__m512i bits) { return reinterpret_cast<const __m512bh&>(bits); }

// c[kRows, kVectors * 16] = (kAdd ? c : 0) + a[kRows, depth] * b[depth, …], one pair after the
// other.
template <int kRows, int kVectors, bool kAdd>
void multiply_tile(Pairs a, Pairs b, float* c, std::int64_t c_stride, int depth) {
  __m512 sums[kRows][kVectors];
  for (int row = 0; row < kRows; ++row) {
    for (int i = 0; i < kVectors; ++i) {
      sums[row][i] = kAdd ? _mm512_loadu_ps(c + row * c_stride + i * kPairs) : _mm512_setzero_ps();
    }
  }
  for (int k = 0; k < depth; ++k) {
    __m512bh columns[kVectors];
    for (int i = 0; i < kVectors; ++i) {
      columns[i] = as_halves(_mm512_loadu_si512(b.data + k * b.stride + i * kPairs));
    }
    for (int row = 0; row < kRows; ++row) {
      const __m512bh factor =
          as_halves(_mm512_set1_epi32(static_cast<int>(a.data[row * a.stride + k])));
      for (int i = 0; i < kVectors; ++i) {
        sums[row][i] = _mm512_dpbf16_ps(sums[row][i], factor, columns[i]);
      }
    }
  }
  for (int row = 0; row < kRows; ++row) {
    for (int i = 0; i < kVectors; ++i) {
      _mm512_storeu_ps(c + row * c_stride + i * kPairs, sums[row][i]);
    }
  }
}

// The same of `count` rows up to kRows.
template <int kRows, int kVectors, bool kAdd>
void multiply_rows(int count, Pairs a, Pairs b, float* c, std::int64_t c_stride, int depth) {
  if (count == kRows) {
    multiply_tile<kRows, kVectors, kAdd>(a, b, c, c_stride, depth);
  } else if constexpr (kRows > 1) {
    multiply_rows<kRows - 1, kVectors, kAdd>(count, a, b, c, c_stride, depth);
  }
}

// The same of any number of rows, and of `width` columns, a multiple of 32.
template <bool kAdd>
void multiply(int num_rows, int width, Pairs a, Pairs b, float* c, std::int64_t c_stride,
              int depth) {
  for (int row = 0; row < num_rows; row += kTileRows) {
    const int count = num_rows - row < kTileRows ? num_rows - row : kTileRows;
    const Pairs rows = {a.data + row * a.stride, a.stride};
    int column = 0;
    for (; column + 4 * kPairs <= width; column += 4 * kPairs) {
      multiply_rows<kTileRows, 4, kAdd>(count, rows, {b.data + column, b.stride},
                                        c + row * c_stride + column, c_stride, depth);
    }
    if (column < width) {
      multiply_rows<kTileRows, 2, kAdd>(count, rows, {b.data + column, b.stride},
                                        c + row * c_stride + column, c_stride, depth);
    }
  }
}

struct PairProducts {
  static void pack_keys(const AttentionTile& tile, const CacheRows& rows) {
    pack_key_pairs(tile, rows);
  }
  static void pack_values(const AttentionTile& tile, const CacheRows& rows) {
    pack_value_pairs(tile, rows);
  }
  static void score(const AttentionTile& tile, int first, int count) {
    const auto* queries = static_cast<const std::uint16_t*>(tile.queries);
    multiply<false>(count, kKeyBlock,
                    pairs(queries + std::int64_t{first} * tile.padded_dim, tile.padded_dim / 2),
                    pairs(tile.keys, kKeyBlock), tile.scores, kKeyBlock, tile.padded_dim / 2);
  }
  static void weigh(const AttentionTile& tile, int first, int count, std::int64_t start) {
    weigh_pairs(tile, first, count, start);
  }
  static void accumulate(const AttentionTile& tile, int first, int count, int num_keys) {
    multiply<true>(count, tile.padded_dim, pairs(tile.weights, kKeyBlock / 2),
                   pairs(tile.values, tile.padded_dim),
                   tile.part.outputs + std::int64_t{first} * tile.padded_dim, tile.padded_dim,
                   (num_keys + 1) / 2);
  }
};

void begin() {}
void end() {}

}  // namespace

const AttentionKernels kAttentionKernels = {
    begin,       end,         pack_query_rows, attention_templates::attend<PairProducts>,
    merge_parts, finish_rows,
};

}  // namespace antiphon::kernels::avx512_bf16
