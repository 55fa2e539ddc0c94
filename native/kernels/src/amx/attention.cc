#include <immintrin.h>

#include <cstdint>

#include "../attention_kernels.h"
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

// The largest tiles, but sums (0 to 3) and left operands (4 and 5) as short as there are queries.
void begin(const AttentionTile& tile) {
  const auto rows =
      static_cast<std::uint8_t>(tile.num_queries < kTileRows ? tile.num_queries : kTileRows);
  AttentionTileConfig config;
  for (int i = 0; i < 8; ++i) {
    config.row_bytes[i] = kTileBytes;
    config.num_rows[i] = i < 6 ? rows : std::uint8_t{kTileRows};
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

Operand operand(const void* data, std::int64_t stride) {
  return {static_cast<const char*>(data), stride};
}

Result result(float* data, std::int64_t stride) { return {reinterpret_cast<char*>(data), stride}; }

void score(const AttentionTile& tile) {
  multiply<false>(
      tile.padded_queries, kKeyBlock, operand(tile.queries, std::int64_t{tile.padded_dim} * 2),
      operand(tile.keys, kKeyBlock * 4), result(tile.scores, kKeyBlock * 4), tile.padded_dim);
}

void accumulate(const AttentionTile& tile, int num_keys) {
  multiply<true>(tile.padded_queries, tile.padded_dim, operand(tile.weights, kKeyBlock * 2),
                 operand(tile.values, std::int64_t{tile.padded_dim} * 4),
                 result(tile.part.outputs, std::int64_t{tile.padded_dim} * 4),
                 (num_keys + kTileDepth - 1) / kTileDepth * kTileDepth);
}

}  // namespace

const AttentionKernels kAttentionKernels = {
    begin,
    end,
    avx512_bf16::pack_query_rows,
    avx512_bf16::pack_key_pairs,
    avx512_bf16::pack_value_pairs,
    score,
    avx512_bf16::weigh_pairs,
    accumulate,
    avx512_bf16::merge_parts,
    avx512_bf16::finish_rows,
};

}  // namespace antiphon::kernels::amx
