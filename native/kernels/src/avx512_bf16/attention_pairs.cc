#include "attention_pairs.h"

#include <immintrin.h>

#include "../attention_softmax.h"
#include "../avx512/vector_math.h"

namespace antiphon::kernels::avx512_bf16 {

namespace {

using avx512::FloatVector;

constexpr int kHalves = 32;        // bf16 numbers of a vector,
constexpr int kQuarterHalves = 8;  // and of a quarter

// Those that are left of `size` from `place` on.
__mmask32 halves_left(int size, int place) {
  const int left = size - place;
  if (left <= 0) {
    return 0;
  }
  return left >= kHalves ? ~__mmask32{0}
                         : static_cast<__mmask32>((1U << static_cast<unsigned>(left)) - 1U);
}

const std::uint16_t* halves(const void* row) { return static_cast<const std::uint16_t*>(row); }

// Quarter `i` of the result is what is at `place` in row 4 i + `first` of 16.
__m512i load_quarters(const void* const* rows, int first, int place) {
  const auto quarter = [&](int i) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(halves(rows[4 * i + first]) + place));
  };
  __m512i all = _mm512_castsi128_si512(quarter(0));
  all = _mm512_mask_broadcast_i32x4(all, 0x00F0, quarter(1));
  all = _mm512_mask_broadcast_i32x4(all, 0x0F00, quarter(2));
  return _mm512_mask_broadcast_i32x4(all, 0xF000, quarter(3));
}

// The same where a row ends within the quarter.
__m512i load_quarter_ends(const void* const* rows, int first, int place, __mmask8 left) {
  alignas(64) __m128i quarters[4];
  for (int i = 0; i < 4; ++i) {
    quarters[i] = _mm_maskz_loadu_epi16(left, halves(rows[4 * i + first]) + place);
  }
  return _mm512_load_si512(quarters);
}

// Four pairs of dimensions of 16 rows: each pair's vector goes to a row of its own.
void store_transposed(const __m512i (&quarters)[4], std::uint32_t* to, std::int64_t stride) {
  const __m512i low01 = _mm512_unpacklo_epi32(quarters[0], quarters[1]);
  const __m512i low23 = _mm512_unpacklo_epi32(quarters[2], quarters[3]);
  const __m512i high01 = _mm512_unpackhi_epi32(quarters[0], quarters[1]);
  const __m512i high23 = _mm512_unpackhi_epi32(quarters[2], quarters[3]);
  _mm512_storeu_si512(to, _mm512_unpacklo_epi64(low01, low23));
  _mm512_storeu_si512(to + stride, _mm512_unpackhi_epi64(low01, low23));
  _mm512_storeu_si512(to + 2 * stride, _mm512_unpacklo_epi64(high01, high23));
  _mm512_storeu_si512(to + 3 * stride, _mm512_unpackhi_epi64(high01, high23));
}

struct PairWeights {
  static void store(const AttentionTile& tile, int row, const FloatVector* weights) {
    auto* to = static_cast<std::uint16_t*>(tile.weights) + std::int64_t{row} * kKeyBlock;
    for (int i = 0; i < kKeyBlock / kHalves; ++i) {
      const __m512bh rounded = _mm512_cvtne2ps_pbh(weights[2 * i + 1].lanes, weights[2 * i].lanes);
      _mm512_storeu_si512(to + i * kHalves, reinterpret_cast<const __m512i&>(rounded));
    }
  }
};

// Outputs in the order that pack_value_pairs leaves.
struct PairColumns {
  template <class Vector>
  static Vector load(const float* outputs, int column) {
    const int first = column / kHalves * kHalves;
    const int fours = column % kHalves / 8;  // of 8 columns that go before, of either half
    const __m512i order =
        _mm512_add_epi32(_mm512_set1_epi32(4 * fours),
                         _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23));
    return {_mm512_permutex2var_ps(_mm512_loadu_ps(outputs + first), order,
                                   _mm512_loadu_ps(outputs + first + 16))};
  }
};

}  // namespace

void pack_query_rows(const AttentionTile& tile, const QueryRows& rows) {
  auto* queries = static_cast<std::uint16_t*>(tile.queries);
  for (int query = 0; query < tile.num_queries; ++query) {
    const std::uint16_t* from = halves(rows.data) + query / tile.group * rows.stride +
                                std::int64_t{query % tile.group} * tile.head_dim;
    for (int i = 0; i < tile.padded_dim; i += kHalves) {
      _mm512_storeu_si512(queries + std::int64_t{query} * tile.padded_dim + i,
                          _mm512_maskz_loadu_epi16(halves_left(tile.head_dim, i), from + i));
    }
  }
}

void transpose_pairs(const void* const* rows, int head_dim, int padded_dim, std::uint32_t* to,
                     std::int64_t stride) {
  for (int i = 0; i < padded_dim; i += kQuarterHalves) {
    const auto left = static_cast<__mmask8>(halves_left(head_dim, i));
    __m512i quarters[4];
    for (int j = 0; j < 4; ++j) {
      quarters[j] = i + kQuarterHalves <= head_dim ? load_quarters(rows, j, i)
                                                   : load_quarter_ends(rows, j, i, left);
    }
    store_transposed(quarters, to + i / 2 * stride, stride);
  }
}

// [padded_dim / 2, kKeyBlock] pairs.
void pack_key_pairs(const AttentionTile& tile, const CacheRows& rows) {
  auto* keys = static_cast<std::uint32_t*>(tile.keys);
  for (int key = 0; key < rows.count; key += kEvenRows) {
    transpose_pairs(rows.rows + key, tile.head_dim, tile.padded_dim, keys + key, kKeyBlock);
  }
}

// [kKeyBlock / 2, padded_dim] pairs, zeros behind the last key as far as a tile of 32 keys goes. Of
// 32 columns the lower halves of each 8 come first, then the upper ones: that's how the fastest
// instructions leave them, and any order will do until the results are finished.
void pack_value_pairs(const AttentionTile& tile, const CacheRows& rows) {
  auto* values = static_cast<std::uint16_t*>(tile.values);
  const int end = (rows.count + kHalves - 1) / kHalves * kHalves;
  const int whole = tile.head_dim % kHalves == 0 ? rows.count / 2 * 2 : 0;
  for (int key = 0; key < end; key += 2) {
    const std::uint16_t* even = halves(rows.rows[key]);
    const std::uint16_t* odd = halves(rows.rows[key + 1]);
    std::uint16_t* to = values + std::int64_t{key} * tile.padded_dim;
    for (int i = 0; i < tile.padded_dim; i += kHalves) {
      __m512i a;
      __m512i b;
      if (key < whole) {
        a = _mm512_loadu_si512(even + i);
        b = _mm512_loadu_si512(odd + i);
      } else {
        const __mmask32 left = halves_left(tile.head_dim, i);
        a = _mm512_maskz_loadu_epi16(key < rows.count ? left : 0, even + i);
        b = _mm512_maskz_loadu_epi16(key + 1 < rows.count ? left : 0, odd + i);
      }
      _mm512_storeu_si512(to + 2 * i, _mm512_unpacklo_epi16(a, b));
      _mm512_storeu_si512(to + 2 * i + kHalves, _mm512_unpackhi_epi16(a, b));
    }
  }
}

void weigh_pairs(const AttentionTile& tile, int first, int count, std::int64_t start) {
  attention_templates::weigh<FloatVector, PairWeights>(tile, first, count, start);
}

void merge_parts(const AttentionTile& tile, const PartialResult& part, const PartialResult& total) {
  attention_templates::merge<FloatVector>(tile, part, total);
}

void finish_rows(const AttentionTile& tile, const PartialResult& total, const OutputRows& out) {
  attention_templates::finish<FloatVector, PairColumns>(tile, total, out);
}

}  // namespace antiphon::kernels::avx512_bf16
