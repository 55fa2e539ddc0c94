// Products of bfloat16 pairs with AMX.
//
// Up to 32 rows by a pair's 32 outputs are four tiles of sums. A multiplication of tiles takes a
// slice's 32 inputs, and sums even and odd inputs apart before it adds both to the sum so far: one
// order, whatever the number of rows.
#include "../avx512_bf16/products.h"

namespace antiphon::kernels {
namespace {

constexpr int kTileRows = 16;
constexpr int kBlockRows = 2 * kTileRows;

// Tiles 0 and 1: sums of the first 16 rows, by the two panels. 2 and 3: those of the other rows.
// 4 and 5: the rows. 6 and 7: the panels' weights.
struct alignas(64) Configuration {
  std::uint8_t palette = 1;
  std::uint8_t start_row = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t row_bytes[16] = {};
  std::uint8_t rows[16] = {};
};

// How many rows the tiles of this thread are for; 0: nobody has set them.
thread_local std::int64_t configured_rows = 0;

void configure(std::int64_t num_rows) {
  Configuration configuration;
  const auto first = static_cast<std::uint8_t>(num_rows < kTileRows ? num_rows : kTileRows);
  const auto second =
      static_cast<std::uint8_t>(num_rows > kTileRows ? num_rows - kTileRows : kTileRows);
  const std::uint8_t rows[] = {first, first, second, second, first, second, kTileRows, kTileRows};
  for (int tile = 0; tile < 8; ++tile) {
    configuration.rows[tile] = rows[tile];
    configuration.row_bytes[tile] = 64;
  }
  // GCC 12's own function tells the compiler of 8 bytes that are read only.
  __asm__ volatile("ldtilecfg %0" : : "m"(configuration));
  configured_rows = num_rows;
}

void begin(std::int64_t num_rows) { configure(num_rows < kBlockRows ? num_rows : kBlockRows); }

void end() {
  _tile_release();
  configured_rows = 0;
}

constexpr std::size_t kSumsStride = kPair * sizeof(float);

// Up to 16 rows.
void multiply_few(const Product& product, const std::uint16_t* rows, float* sums,
                  Prefetching& prefetching) {
  const auto stride = static_cast<std::size_t>(product.row_stride) * 2;
  if (product.continues) {
    _tile_loadd(0, sums, kSumsStride);
    _tile_loadd(1, sums + kPanel, kSumsStride);
  } else {
    _tile_zero(0);
    _tile_zero(1);
  }
  const std::byte* tile = product.tiles;
  for (std::int64_t slice = 0; slice < product.num_slices; ++slice) {
    prefetching.step();
    _tile_loadd(4, rows, stride);
    _tile_loadd(6, tile, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, tile + kTile * 2, 64);
    _tile_dpbf16ps(1, 4, 7);
    rows += kSlice;
    tile += 2 * kTile * 2;
  }
  _tile_stored(0, sums, kSumsStride);
  _tile_stored(1, sums + kPanel, kSumsStride);
}

// From 17 to 32 rows.
void multiply_many(const Product& product, const std::uint16_t* rows, float* sums,
                   Prefetching& prefetching) {
  const auto stride = static_cast<std::size_t>(product.row_stride) * 2;
  float* const other_sums = sums + kTileRows * kPair;
  if (product.continues) {
    _tile_loadd(0, sums, kSumsStride);
    _tile_loadd(1, sums + kPanel, kSumsStride);
    _tile_loadd(2, other_sums, kSumsStride);
    _tile_loadd(3, other_sums + kPanel, kSumsStride);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  const std::byte* tile = product.tiles;
  const std::uint16_t* other_rows = rows + kTileRows * product.row_stride;
  for (std::int64_t slice = 0; slice < product.num_slices; ++slice) {
    prefetching.step();
    _tile_loadd(6, tile, 64);
    _tile_loadd(4, rows, stride);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, tile + kTile * 2, 64);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(5, other_rows, stride);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
    rows += kSlice;
    other_rows += kSlice;
    tile += 2 * kTile * 2;
  }
  _tile_stored(0, sums, kSumsStride);
  _tile_stored(1, sums + kPanel, kSumsStride);
  _tile_stored(2, other_sums, kSumsStride);
  _tile_stored(3, other_sums + kPanel, kSumsStride);
}

void multiply(const Product& product) {
  const auto* rows = static_cast<const std::uint16_t*>(product.rows);
  float* sums = product.sums;
  Prefetching prefetching(product.upcoming,
                          product.num_slices * divide_up(product.num_rows, kBlockRows));
  for (std::int64_t left = product.num_rows; left > 0; left -= kBlockRows) {
    const std::int64_t count = left < kBlockRows ? left : kBlockRows;
    if (count != configured_rows) {
      configure(count);
    }
    (count > kTileRows ? multiply_many : multiply_few)(product, rows, sums, prefetching);
    rows += kBlockRows * product.row_stride;
    sums += kBlockRows * kPair;
  }
}

constexpr ProductKernels kKernels = avx512_bf16::kernels_with(multiply, begin, end);

}  // namespace

const ProductKernels& amx_kernels() { return kKernels; }

}  // namespace antiphon::kernels
