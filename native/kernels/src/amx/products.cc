// Products of bfloat16 pairs with AMX.
//
// Up to 32 rows by a pair's 32 outputs are four tiles of sums. A multiplication of tiles takes a
// slice's 32 inputs, and sums even and odd inputs apart before it adds both to the sum so far: one
// order, whatever the number of rows.
#include <algorithm>

#include "few_rows.h"
#include "tiles.h"
#include "unpack_rows.h"

namespace antiphon::kernels {
namespace {

using amx::kTileBytes;
using amx::kTileRows;
using amx::tiles_are_written;

constexpr int kBlockRows = 2 * kTileRows;

// Tiles 0 and 1: sums of the first 16 rows, by the two panels. 2 and 3: those of the other rows.
// 4 and 5: the rows. 6 and 7: the panels' weights.
void set_tiles_for(std::int64_t num_rows) {
  const amx::TileState wanted = {amx::TileUse::kRowsOnTheLeft, num_rows};
  if (amx::tile_state == wanted) {
    return;
  }
  const amx::TileShape first = {static_cast<int>(std::min<std::int64_t>(num_rows, kTileRows)), 64};
  const amx::TileShape second = {
      num_rows > kTileRows ? static_cast<int>(num_rows) - kTileRows : kTileRows, 64};
  const amx::TileShape weights = {kTileRows, 64};
  amx::set_tiles(wanted, {first, first, second, second, first, second, weights, weights});
}

constexpr std::size_t kSumsStride = kPair * sizeof(float);

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
    set_tiles_for(count);
    (count > kTileRows ? multiply_block<true> : multiply_block<false>)(product, rows, sums,
                                                                       prefetching);
    rows += kBlockRows * product.row_stride;
    sums += kBlockRows * kPair;
  }
}

// A tile whose rows are outputs into one in the order of pairs.
void transpose(const std::byte* rows, std::byte* pairs) {
  for (int quarter = 0; quarter < 4; ++quarter) {
    // Four pairs of inputs of outputs 0, 4, 8, 12; of 1, 5, 9, 13, and so on.
    __m512i parts[4];
    for (int i = 0; i < 4; ++i) {
      const auto part = [&](int group) {
        const std::byte* const at = rows + (4 * group + i) * 64 + quarter * 16;
        return _mm_load_si128(reinterpret_cast<const __m128i*>(at));
      };
      parts[i] = _mm512_castsi128_si512(part(0));
      parts[i] = _mm512_mask_broadcast_i32x4(parts[i], 0x00F0, part(1));
      parts[i] = _mm512_mask_broadcast_i32x4(parts[i], 0x0F00, part(2));
      parts[i] = _mm512_mask_broadcast_i32x4(parts[i], 0xF000, part(3));
    }
    const __m512i low01 = _mm512_unpacklo_epi32(parts[0], parts[1]);
    const __m512i low23 = _mm512_unpacklo_epi32(parts[2], parts[3]);
    const __m512i high01 = _mm512_unpackhi_epi32(parts[0], parts[1]);
    const __m512i high23 = _mm512_unpackhi_epi32(parts[2], parts[3]);
    std::byte* const to = pairs + quarter * 4 * 64;
    _mm512_store_si512(to, _mm512_unpacklo_epi64(low01, low23));
    _mm512_store_si512(to + 64, _mm512_unpackhi_epi64(low01, low23));
    _mm512_store_si512(to + 128, _mm512_unpacklo_epi64(high01, high23));
    _mm512_store_si512(to + 192, _mm512_unpackhi_epi64(high01, high23));
  }
}

template <WeightFormat format>
void unpack_integers(const Unpacking& work) {
  amx::Slices<format> slices(work);
  auto* tile = static_cast<std::byte*>(work.tiles);
  alignas(64) std::byte rows[kTileBytes];
  for (std::int64_t slice = 0; slice < work.num_slices; ++slice) {
    slices.begin(slice);
    slices.template write<0>(rows);
    transpose(rows, tile);
    slices.template write<1>(rows);
    transpose(rows, tile + kTileBytes);
    tile += 2 * kTileBytes;
  }
}

constexpr ProductKernels kKernels = {
    Type::kBf16,
    {nullptr, nullptr, unpack_integers<WeightFormat::kInt8>, unpack_integers<WeightFormat::kInt6>,
     unpack_integers<WeightFormat::kInt5>, unpack_integers<WeightFormat::kInt4>},
    multiply,
    finishing::finish_rows<avx512::FloatVector>,
    [](std::int64_t) {},
    amx::release_tiles,
    IntegerLayout::kLanesAreInputs,
    {nullptr, nullptr, amx::multiply_few<WeightFormat::kInt8>,
     amx::multiply_few<WeightFormat::kInt6>, amx::multiply_few<WeightFormat::kInt5>,
     amx::multiply_few<WeightFormat::kInt4>},
    amx::arrange,
    kFewRows,
    2 * kSlice,
    false,
    32,  // tiles multiply faster than a further cache is read
};

}  // namespace

const ProductKernels& amx_kernels() { return kKernels; }

}  // namespace antiphon::kernels
