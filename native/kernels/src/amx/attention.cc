#include <immintrin.h>

#include <cstdint>

#include "../attention_kernels.h"
#include "../attention_softmax.h"
#include "../avx512_bf16/attention_pairs.h"

namespace antiphon::kernels::amx {

namespace {

constexpr int kTileRows = 16;
constexpr int kTileBytes = 64;    // of a row
constexpr int kTileColumns = 16;  // f32 numbers, or pairs, of a row
constexpr int kTileDepth = 32;    // bf16 numbers of a row

// As the processor reads it.
struct alignas(64) AttentionTileConfig {
  std::uint8_t palette = 1;
  std::uint8_t start_row = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t row_bytes[16] = {};
  std::uint8_t num_rows[16] = {};
};

// `stride` bytes from row to row.
struct Operand {
  const char* data;
  std::int64_t stride;
};
struct Result {
  char* data;
  std::int64_t stride;
};

// Tiles 0 to 3 take sums, 4 and 5 left operands, 6 and 7 right ones.
void begin() {
  AttentionTileConfig config;
  for (int i = 0; i < 8; ++i) {
    config.row_bytes[i] = kTileBytes;
    config.num_rows[i] = kTileRows;
  }
  // GCC takes the instruction to read 8 of the 64 bytes, and would not write the others.
  asm volatile("" : : "r"(&config) : "memory");
  _tile_loadconfig(&config);
}

void end() { _tile_release(); }

// c[32, 32] = (kAdd ? c : 0) + a[32, depth] * b[depth, 32].
template <bool kAdd>
void multiply_square(Operand a, Operand b, Result c, int depth) {
  char* below = c.data + kTileRows * c.stride;
  if constexpr (kAdd) {
    _tile_loadd(0, c.data, c.stride);
    _tile_loadd(1, c.data + kTileBytes, c.stride);
    _tile_loadd(2, below, c.stride);
    _tile_loadd(3, below + kTileBytes, c.stride);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  for (int k = 0; k < depth; k += kTileDepth) {
    const char* left = a.data + std::int64_t{k} * 2;
    const char* right = b.data + k / 2 * b.stride;
    _tile_loadd(6, right, b.stride);
    _tile_loadd(4, left, a.stride);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, right + kTileBytes, b.stride);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(5, left + kTileRows * a.stride, a.stride);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, c.data, c.stride);
  _tile_stored(1, c.data + kTileBytes, c.stride);
  _tile_stored(2, below, c.stride);
  _tile_stored(3, below + kTileBytes, c.stride);
}

// c[16, 32] = (kAdd ? c : 0) + a[16, depth] * b[depth, 32], in the same order.
template <bool kAdd>
void multiply_strip(Operand a, Operand b, Result c, int depth) {
  if constexpr (kAdd) {
    _tile_loadd(0, c.data, c.stride);
    _tile_loadd(1, c.data + kTileBytes, c.stride);
  } else {
    _tile_zero(0);
    _tile_zero(1);
  }
  for (int k = 0; k < depth; k += kTileDepth) {
    const char* right = b.data + k / 2 * b.stride;
    _tile_loadd(4, a.data + std::int64_t{k} * 2, a.stride);
    _tile_loadd(6, right, b.stride);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, right + kTileBytes, b.stride);
    _tile_dpbf16ps(1, 4, 7);
  }
  _tile_stored(0, c.data, c.stride);
  _tile_stored(1, c.data + kTileBytes, c.stride);
}

// `num_rows` is a multiple of 16, `width` and `depth` of 32.
template <bool kAdd>
void multiply(int num_rows, int width, Operand a, Operand b, Result c, int depth) {
  for (int column = 0; column < width; column += 2 * kTileColumns) {
    const Operand right = {b.data + std::int64_t{column} * 4, b.stride};
    int row = 0;
    for (; row + 2 * kTileRows <= num_rows; row += 2 * kTileRows) {
      multiply_square<kAdd>({a.data + row * a.stride, a.stride}, right,
                            {c.data + row * c.stride + std::int64_t{column} * 4, c.stride}, depth);
    }
    if (row < num_rows) {
      multiply_strip<kAdd>({a.data + row * a.stride, a.stride}, right,
                           {c.data + row * c.stride + std::int64_t{column} * 4, c.stride}, depth);
    }
  }
}

bool has_few(const AttentionTile& tile) { return tile.num_queries <= kTileRows; }

// Queries where there are few: each pair of dimensions of all 16, so that they can stand on the
// right of keys as they lie in the cache.
void pack_queries(const AttentionTile& tile, const QueryRows& rows) {
  avx512_bf16::pack_query_rows(tile, rows);
  if (has_few(tile)) {
    const void* packed[kTileRows];
    for (int i = 0; i < kTileRows; ++i) {
      packed[i] = static_cast<const std::uint16_t*>(tile.queries) +
                  (i < tile.num_queries ? i : 0) * std::int64_t{tile.padded_dim};
    }
    avx512_bf16::transpose_pairs(packed, tile.padded_dim, tile.padded_dim,
                                 static_cast<std::uint32_t*>(tile.few), kTileRows);
  }
}

// Up to 32 keys as they lie in the cache, `rows` on, times few queries: [32, 16].
void multiply_keys(const AttentionTile& tile, const CacheRows& rows, int key, float* turned) {
  const bool has_second = key + kTileRows < rows.count;
  const auto* first = static_cast<const char*>(rows.rows[key]);
  const auto* second = static_cast<const char*>(rows.rows[has_second ? key + kTileRows : key]);
  const auto* queries = static_cast<const char*>(tile.few);
  _tile_zero(0);
  _tile_zero(1);
  for (int k = 0; k < tile.padded_dim; k += kTileDepth) {
    _tile_loadd(6, queries + std::int64_t{k} * kTileBytes / 2, kTileBytes);
    _tile_loadd(4, first + std::int64_t{k} * 2, rows.stride);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(5, second + std::int64_t{k} * 2, rows.stride);
    _tile_dpbf16ps(1, 5, 6);
  }
  _tile_stored(0, turned, kTileBytes);
  _tile_stored(1, turned + kTileRows * kTileColumns, kTileBytes);
}

// Each score is the same sum of the same products as that of queries times keys.
void score_few(const AttentionTile& tile, const CacheRows& rows) {
  alignas(kTileBytes) float turned[kKeyBlock][kTileColumns];
  for (int key = 0; key < rows.count; key += 2 * kTileRows) {
    multiply_keys(tile, rows, key, turned[key]);
  }
  const void* turned_rows[kKeyBlock];
  for (int i = 0; i < kKeyBlock; ++i) {
    turned_rows[i] = turned[i];
  }
  const int num_pairs = (tile.num_queries + 3) / 4 * 4;  // of halves: a number
  for (int key = 0; key < rows.count; key += kTileRows) {
    avx512_bf16::transpose_pairs(turned_rows + key, 2 * kTileColumns, 2 * num_pairs,
                                 reinterpret_cast<std::uint32_t*>(tile.scores) + key, kKeyBlock);
  }
}

struct TileProducts {
  static void pack_keys(const AttentionTile& tile, const CacheRows& rows) {
    avx512_bf16::pack_key_pairs(tile, rows);
  }
  static void pack_values(const AttentionTile& tile, const CacheRows& rows) {
    avx512_bf16::pack_value_pairs(tile, rows);
  }
  static void score(const AttentionTile& tile, int first, int count) {
    const std::int64_t row_bytes = std::int64_t{tile.padded_dim} * 2;
    multiply<false>(whole_tiles(count), kKeyBlock,
                    {static_cast<const char*>(tile.queries) + first * row_bytes, row_bytes},
                    {static_cast<const char*>(tile.keys), kKeyBlock * 4},
                    {reinterpret_cast<char*>(tile.scores), kKeyBlock * 4}, tile.padded_dim);
  }
  static void weigh(const AttentionTile& tile, int first, int count, std::int64_t start) {
    avx512_bf16::weigh_pairs(tile, first, count, start);
  }
  static void accumulate(const AttentionTile& tile, int first, int count, int num_keys) {
    const std::int64_t row_bytes = std::int64_t{tile.padded_dim} * 4;
    multiply<true>(whole_tiles(count), tile.padded_dim,
                   {static_cast<const char*>(tile.weights), kKeyBlock * 2},
                   {static_cast<const char*>(tile.values), row_bytes},
                   {reinterpret_cast<char*>(tile.part.outputs) + first * row_bytes, row_bytes},
                   (num_keys + kTileDepth - 1) / kTileDepth * kTileDepth);
  }

 private:
  static int whole_tiles(int count) { return (count + kTileRows - 1) / kTileRows * kTileRows; }
};

// For few queries, and keys that lie evenly: those aren't packed.
struct FewQueryProducts : TileProducts {
  static void pack_keys(const AttentionTile& tile, const CacheRows& rows) { score_few(tile, rows); }
  static void score(const AttentionTile& /*tile*/, int /*first*/, int /*count*/) {}
};

void attend(const AttentionTile& tile, const KeyBlock& block) {
  if (has_few(tile) && block.keys.stride != 0 && tile.head_dim == tile.padded_dim) {
    attention_templates::attend<FewQueryProducts>(tile, block);
  } else {
    attention_templates::attend<TileProducts>(tile, block);
  }
}

}  // namespace

const AttentionKernels kAttentionKernels = {
    begin, end, pack_queries, attend, avx512_bf16::merge_parts, avx512_bf16::finish_rows,
};

}  // namespace antiphon::kernels::amx
