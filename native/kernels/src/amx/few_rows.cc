// Weights stand on the left: a row of their tiles is an output, which is how they unpack fastest.
// The step's rows stand on the right, in the order of pairs: all rows' inputs 0 and 1, then all
// rows' inputs 2 and 3, and so on. Sums come out by outputs. A multiplication of tiles sums in the
// same order whichever side is which, so these are the sums of products of many rows, bit for bit.
#include "few_rows.h"

#include <algorithm>

#include "tiles.h"
#include "unpack_rows.h"

namespace antiphon::kernels::amx {
namespace {

// The vectors of two rows of words become one row, a word of each in turn.
struct Interleaved {
  __m512i low;
  __m512i high;
};

Interleaved interleave(__m512i even, __m512i odd) {
  const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
  return {_mm512_permutex2var_epi32(even, low, odd), _mm512_permutex2var_epi32(even, high, odd)};
}

// And back.
Interleaved part(__m512i first, __m512i second) {
  const __m512i evens =
      _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  const __m512i odds = _mm512_add_epi32(evens, _mm512_set1_epi32(1));
  return {_mm512_permutex2var_epi32(first, evens, second),
          _mm512_permutex2var_epi32(first, odds, second)};
}

// `count` rows of 16 words into 16 times `count` words: word p of all rows, for each p.
template <int count>
void turn(const __m512i* rows, int stride, __m512i* turned) {
  if constexpr (count == 1) {
    turned[0] = rows[0];
  } else {
    __m512i evens[count / 2];
    __m512i odds[count / 2];
    turn<count / 2>(rows, 2 * stride, evens);
    turn<count / 2>(rows + stride, 2 * stride, odds);
    for (int i = 0; i < count / 2; ++i) {
      const Interleaved both = interleave(evens[i], odds[i]);
      turned[2 * i] = both.low;
      turned[2 * i + 1] = both.high;
    }
  }
}

template <int count>
void turn_back(const __m512i* turned, __m512i* rows, int stride) {
  if constexpr (count == 1) {
    rows[0] = turned[0];
  } else {
    __m512i evens[count / 2];
    __m512i odds[count / 2];
    for (int i = 0; i < count / 2; ++i) {
      const Interleaved both = part(turned[2 * i], turned[2 * i + 1]);
      evens[i] = both.low;
      odds[i] = both.high;
    }
    turn_back<count / 2>(evens, rows, 2 * stride);
    turn_back<count / 2>(odds, rows + stride, 2 * stride);
  }
}

// Calls `f` with the number of rows that a group's tile is for.
template <class F>
void with_width(std::int64_t width, F f) {
  switch (width) {
    case 1:
      return f(std::integral_constant<int, 1>{});
    case 2:
      return f(std::integral_constant<int, 2>{});
    case 4:
      return f(std::integral_constant<int, 4>{});
    case 8:
      return f(std::integral_constant<int, 8>{});
    default:
      return f(std::integral_constant<int, 16>{});
  }
}

// A group's rows of one slice.
template <int width>
void arrange_slice(const std::uint16_t* rows, std::int64_t stride, std::int64_t num_rows,
                   std::byte* arranged) {
  __m512i vectors[width];
  for (int r = 0; r < width; ++r) {
    vectors[r] = r < num_rows ? _mm512_loadu_si512(rows + r * stride) : _mm512_setzero_si512();
  }
  __m512i turned[width];
  turn<width>(vectors, 1, turned);
  for (int i = 0; i < width; ++i) {
    _mm512_store_si512(arranged + i * 64, turned[i]);
  }
}

// Of up to 16 rows; with more there are two.
struct Groups {
  explicit Groups(std::int64_t num_rows)
      : width(std::min<std::int64_t>(arranged_rows(num_rows), kTileRows)),
        count(num_rows > kTileRows ? 2 : 1) {}
  std::int64_t width;  // rows of a tile
  std::int64_t count;
};

void set_tiles_for(const Groups& groups) {
  const TileState wanted = {TileUse::kWeightsOnTheLeft, groups.width};
  if (tile_state == wanted) {
    return;
  }
  // Tiles 0 to 3: sums, by group and panel. 4 and 5: rows. 6 and 7: weights.
  const TileShape rows = {kTileRows, static_cast<int>(groups.width) * 4};
  const TileShape weights = {kTileRows, 64};
  set_tiles(wanted, {rows, rows, rows, rows, rows, rows, weights, weights});
}

// A pair's product.
template <WeightFormat format, bool many>
class Pair {
 public:
  Pair(const Unpacking& work, const Product& product, const Groups& groups)
      : work_(work),
        slices_(work),
        ring_(static_cast<std::byte*>(work.tiles)),
        rows_(static_cast<const std::byte*>(product.rows)),
        rows_stride_(static_cast<std::size_t>(groups.width) * 4) {}

  // Unpacks a slice while the one before is multiplied. A tile is loaded half a slice after it was
  // written, and multiplied half a slice after that: nothing waits for it, for it is there by then.
  void multiply() {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (std::int64_t slice = 0; slice < work_.num_slices; ++slice) {
      slices_.begin(slice);
      slices_.template write<0>(tile_of(slice, 0));
      if (slice > 0) {
        multiply_first();
        load_second(slice - 1);
      }
      slices_.template write<1>(tile_of(slice, 1));
      if (slice > 0) {
        multiply_second();
      }
      load_first(slice);
    }
    multiply_first();
    load_second(work_.num_slices - 1);
    multiply_second();
  }

 private:
  std::byte* tile_of(std::int64_t slice, int half) const {
    return ring_ + (slice % 4 * 2 + half) * static_cast<std::int64_t>(kTileBytes);
  }

  // The slice's rows, and the weights of the first panel.
  __attribute__((always_inline)) void load_first(std::int64_t slice) {
    tiles_are_written();
    _tile_loadd(6, tile_of(slice, 0), 64);
    _tile_loadd(4, rows_, rows_stride_);
    rows_ += kTileRows * rows_stride_;
    if constexpr (many) {
      _tile_loadd(5, rows_, rows_stride_);
      rows_ += kTileRows * rows_stride_;
    }
  }

  __attribute__((always_inline)) void load_second(std::int64_t slice) const {
    tiles_are_written();
    _tile_loadd(7, tile_of(slice, 1), 64);
  }

  __attribute__((always_inline)) static void multiply_first() {
    _tile_dpbf16ps(0, 6, 4);
    if constexpr (many) {
      _tile_dpbf16ps(2, 6, 5);
    }
  }

  __attribute__((always_inline)) static void multiply_second() {
    _tile_dpbf16ps(1, 7, 4);
    if constexpr (many) {
      _tile_dpbf16ps(3, 7, 5);
    }
  }

  const Unpacking& work_;
  Slices<format> slices_;
  std::byte* const ring_;
  const std::byte* rows_;
  const std::size_t rows_stride_;  // in bytes
};

// A panel's sums of a group: by outputs in `tile`, by rows in `sums`.
template <int width>
void write_sums(const std::byte* tile, std::int64_t num_rows, float* sums) {
  __m512i turned[width];
  for (int i = 0; i < width; ++i) {
    turned[i] = _mm512_load_si512(tile + i * 64);
  }
  __m512i rows[width];
  turn_back<width>(turned, rows, 1);
  for (int r = 0; r < width; ++r) {
    if (r < num_rows) {
      _mm512_storeu_si512(sums + r * kPair, rows[r]);
    }
  }
}

void write_all_sums(const Product& product, const Groups& groups) {
  alignas(64) std::byte tiles[4][kTileBytes];
  const auto stride = static_cast<std::size_t>(groups.width) * 4;
  _tile_stored(0, tiles[0], stride);
  _tile_stored(1, tiles[1], stride);
  if (groups.count > 1) {
    _tile_stored(2, tiles[2], stride);
    _tile_stored(3, tiles[3], stride);
  }
  tiles_are_written();
  with_width(groups.width, [&](auto width) {
    for (std::int64_t group = 0; group < groups.count; ++group) {
      const std::int64_t first = group * kTileRows;
      const std::int64_t count = std::min<std::int64_t>(product.num_rows - first, kTileRows);
      float* const sums = product.sums + first * kPair;
      write_sums<width>(tiles[2 * group], count, sums);
      write_sums<width>(tiles[2 * group + 1], count, sums + kPanel);
    }
  });
}

}  // namespace

void arrange(const Arranging& work) {
  const Groups groups(work.num_rows);
  const auto* const rows = static_cast<const std::uint16_t*>(work.rows);
  auto* arranged = static_cast<std::byte*>(work.arranged);
  with_width(groups.width, [&](auto width) {
    for (std::int64_t slice = 0; slice < work.num_slices; ++slice) {
      for (std::int64_t group = 0; group < groups.count; ++group, arranged += width * 64) {
        const std::int64_t first = group * kTileRows;
        arrange_slice<width>(rows + first * work.row_stride + slice * kSlice, work.row_stride,
                             work.num_rows - first, arranged);
      }
    }
  });
}

template <WeightFormat format>
void multiply_few(const Unpacking& work, const Product& product) {
  const Groups groups(product.num_rows);
  set_tiles_for(groups);
  if (groups.count > 1) {
    Pair<format, true>(work, product, groups).multiply();
  } else {
    Pair<format, false>(work, product, groups).multiply();
  }
  write_all_sums(product, groups);
}

template void multiply_few<WeightFormat::kInt8>(const Unpacking&, const Product&);
template void multiply_few<WeightFormat::kInt6>(const Unpacking&, const Product&);
template void multiply_few<WeightFormat::kInt5>(const Unpacking&, const Product&);
template void multiply_few<WeightFormat::kInt4>(const Unpacking&, const Product&);

}  // namespace antiphon::kernels::amx
