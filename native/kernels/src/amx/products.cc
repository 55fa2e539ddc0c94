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
constexpr std::size_t kTileBytes = kTile * 2;

// The compiler isn't told that loads of tiles read memory: it may not put off stores beyond here.
__attribute__((always_inline)) inline void tiles_are_written() {
  __asm__ volatile("" : : : "memory");
}

// A block of up to 32 rows, in tiles.
class Block {
 public:
  Block(const Product& product, const std::uint16_t* rows, float* sums)
      : stride_(static_cast<std::size_t>(product.row_stride) * 2),
        rows_(rows),
        other_rows_(rows + kTileRows * product.row_stride),
        sums_(sums),
        other_sums_(sums + kTileRows * kPair) {}

  template <bool many>
  void start(bool continues) const {
    if (!continues) {
      _tile_zero(0);
      _tile_zero(1);
      _tile_zero(2);
      _tile_zero(3);
      return;
    }
    _tile_loadd(0, sums_, kSumsStride);
    _tile_loadd(1, sums_ + kPanel, kSumsStride);
    if constexpr (many) {  // more than 16
      _tile_loadd(2, other_sums_, kSumsStride);
      _tile_loadd(3, other_sums_ + kPanel, kSumsStride);
    }
  }

  // The next slice's rows, and their first panel's tile.
  template <bool many>
  __attribute__((always_inline)) void load_first(const std::byte* tile) {
    tiles_are_written();
    _tile_loadd(6, tile, 64);
    _tile_loadd(4, rows_, stride_);
    rows_ += kSlice;
    if constexpr (many) {
      _tile_loadd(5, other_rows_, stride_);
      other_rows_ += kSlice;
    }
  }

  __attribute__((always_inline)) static void load_second(const std::byte* tile) {
    tiles_are_written();
    _tile_loadd(7, tile, 64);
  }

  template <bool many>
  __attribute__((always_inline)) static void multiply_first() {
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (many) {
      _tile_dpbf16ps(2, 5, 6);
    }
  }

  template <bool many>
  __attribute__((always_inline)) static void multiply_second() {
    _tile_dpbf16ps(1, 4, 7);
    if constexpr (many) {
      _tile_dpbf16ps(3, 5, 7);
    }
  }

  template <bool many>
  void finish() const {
    _tile_stored(0, sums_, kSumsStride);
    _tile_stored(1, sums_ + kPanel, kSumsStride);
    if constexpr (many) {
      _tile_stored(2, other_sums_, kSumsStride);
      _tile_stored(3, other_sums_ + kPanel, kSumsStride);
    }
  }

 private:
  const std::size_t stride_;  // in bytes
  const std::uint16_t* rows_;
  const std::uint16_t* other_rows_;
  float* const sums_;
  float* const other_sums_;
};

template <bool many>
void multiply_block(const Product& product, const std::uint16_t* rows, float* sums,
                    Prefetching& prefetching) {
  Block block(product, rows, sums);
  block.start<many>(product.continues);
  const std::byte* tiles = product.tiles;
  for (std::int64_t slice = 0; slice < product.num_slices; ++slice) {
    prefetching.step();
    block.load_first<many>(tiles);
    block.multiply_first<many>();
    block.load_second(tiles + kTileBytes);
    block.multiply_second<many>();
    tiles += 2 * kTileBytes;
  }
  block.finish<many>();
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
    (count > kTileRows ? multiply_block<true> : multiply_block<false>)(product, rows, sums,
                                                                       prefetching);
    rows += kBlockRows * product.row_stride;
    sums += kBlockRows * kPair;
  }
}

// Unpacks a slice while the one before is multiplied. A tile is loaded half a slice after it was
// written, and multiplied half a slice after that: nothing waits for it, for by then it is there.
template <WeightFormat format, bool many>
void unpack_and_multiply_block(const Unpacking& work, const Product& product) {
  Prefetching prefetching(work.upcoming, work.num_slices);
  Block block(product, static_cast<const std::uint16_t*>(product.rows), product.sums);
  block.start<many>(false);
  auto* const ring = static_cast<std::byte*>(work.tiles);
  const std::byte* weights = work.blocks;
  const auto tile_of = [&](std::int64_t slice, int half) {
    return ring + (slice % 4 * 2 + half) * kTileBytes;
  };
  const auto unpack = [&](std::int64_t slice, int half) __attribute__((always_inline)) {
    avx512_bf16::unpack_tile<format>(tile_weights(weights, format, half),
                                     tile_scales(weights, format, half),
                                     work.row_scales + half * kPanel, tile_of(slice, half));
  };
  for (std::int64_t slice = 0; slice < work.num_slices; ++slice) {
    prefetching.step();
    unpack(slice, 0);
    if (slice > 0) {
      block.multiply_first<many>();
      block.load_second(tile_of(slice - 1, 1));
    }
    unpack(slice, 1);
    if (slice > 0) {
      block.multiply_second<many>();
    }
    block.load_first<many>(tile_of(slice, 0));
    weights += block_bytes(format);
  }
  block.multiply_first<many>();
  block.load_second(tile_of(work.num_slices - 1, 1));
  block.multiply_second<many>();
  block.finish<many>();
}

template <WeightFormat format>
void unpack_and_multiply(const Unpacking& work, const Product& product) {
  if (product.num_rows != configured_rows) {
    configure(product.num_rows);
  }
  if (product.num_rows > kTileRows) {
    unpack_and_multiply_block<format, true>(work, product);
  } else {
    unpack_and_multiply_block<format, false>(work, product);
  }
}

constexpr ProductKernels kernels() {
  ProductKernels kernels = avx512_bf16::kernels_with(multiply, begin, end);
  kernels.unpack_and_multiply = {nullptr,
                                 nullptr,
                                 unpack_and_multiply<WeightFormat::kInt8>,
                                 unpack_and_multiply<WeightFormat::kInt6>,
                                 unpack_and_multiply<WeightFormat::kInt5>,
                                 unpack_and_multiply<WeightFormat::kInt4>};
  return kernels;
}

constexpr ProductKernels kKernels = kernels();

}  // namespace

const ProductKernels& amx_kernels() { return kKernels; }

}  // namespace antiphon::kernels
