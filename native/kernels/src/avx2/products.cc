// Products in float32 with AVX2. Integers become floats as with AVX-512, with shifts and masks.
#include <immintrin.h>

#include <utility>

#include "../finish_rows.h"
#include "../float_products.h"
#include "vector_math.h"

namespace antiphon::kernels {
namespace {

// Factor and addend for 1 + value / 2^bits, of 8 lanes.
struct Line {
  __m256 factor;
  __m256 addend;
};

// Bits `from` … of each word, a number of `width` bits that may run over the word's end, moved to
// bits `to` …; others are 0.
template <int from, int to, int width>
__attribute__((always_inline)) inline __m256i moved(__m256i words) {
  constexpr int kFrom = from % 32;
  constexpr int kRight = kFrom - to;
  __m256i result = words;
  if constexpr (kRight > 0) {
    result = _mm256_srli_epi32(words, kRight);
    if constexpr (kFrom + width > 32) {
      result = _mm256_or_si256(result, _mm256_slli_epi32(words, 32 - kRight));
    }
  } else if constexpr (kRight < 0) {
    result = _mm256_slli_epi32(words, -kRight);
  }
  return _mm256_and_si256(result, _mm256_set1_epi32(((1 << width) - 1) << to));
}

// 1 + value / 2^bits of 8 lanes of column `h`, number `p`; `tile` begins at these lanes.
template <WeightFormat format, int h, int p>
__attribute__((always_inline)) inline __m256 values(const std::byte* tile) {
  constexpr int kBits = value_bits(format);
  constexpr int kLow = kBits == 8 ? 8 : 4;
  constexpr int kPerWord = 32 / kLow;
  const auto words = [&](int index) {
    return _mm256_load_si256(reinterpret_cast<const __m256i*>(tile + index * 64));
  };
  constexpr int kPlace = p % kPerWord * kLow + word_rotation(format);
  __m256i bits = _mm256_or_si256(_mm256_set1_epi32(0x3F800000),
                                 moved<kPlace, 23 - kBits, kLow>(words(p / kPerWord * 2 + h)));
  if constexpr (format == WeightFormat::kInt5) {
    bits = _mm256_or_si256(bits, moved<16 * h + p, 22, 1>(words(4)));
  } else if constexpr (format == WeightFormat::kInt6) {
    bits = _mm256_or_si256(bits, moved<2 * p, 21, 2>(words(4 + h)));
  }
  return _mm256_castsi256_ps(bits);
}

// Of 8 outputs; `second` for the second half of the inputs.
template <WeightFormat format>
__attribute__((always_inline)) inline Line line_of(const std::byte* scales, const float* row_scales,
                                                   int second) {
  const __m256 rows = _mm256_loadu_ps(row_scales);
  const auto halves = [&](int index) {
    const auto* const at = reinterpret_cast<const __m128i*>(scales + index * 32);
    return _mm256_mul_ps(_mm256_cvtph_ps(_mm_load_si128(at)), rows);
  };
  constexpr auto kRange = static_cast<float>(1 << value_bits(format));
  const __m256 scale = halves(format == WeightFormat::kInt6 ? second : 0);
  const __m256 factor = _mm256_mul_ps(scale, _mm256_set1_ps(kRange));
  if constexpr (format == WeightFormat::kInt8 || format == WeightFormat::kInt6) {
    return {factor, _mm256_mul_ps(scale, _mm256_set1_ps(-1.5F * kRange))};
  } else {
    return {factor, _mm256_sub_ps(halves(1), factor)};
  }
}

// 8 outputs of a tile; all of the arguments begin at them.
template <WeightFormat format, int... p>
void unpack_lanes(const std::byte* weights, const std::byte* scales, const float* row_scales,
                  float* tile, std::integer_sequence<int, p...>) {
  const Line lines[] = {line_of<format>(scales, row_scales, 0),
                        line_of<format>(scales, row_scales, 1)};
  const auto store = [&](int row, __m256 value, const Line& line) {
    _mm256_store_ps(tile + row * kPanel, _mm256_fmadd_ps(value, line.factor, line.addend));
  };
  const bool in_halves = format == WeightFormat::kInt6;
  (store(2 * p, values<format, 0, p>(weights), lines[in_halves ? p / 8 : 0]), ...);
  (store(2 * p + 1, values<format, 1, p>(weights), lines[in_halves ? p / 8 : 0]), ...);
}

template <WeightFormat format>
void unpack_integers(const Unpacking& work) {
  constexpr int kLanes = 8;
  Prefetching prefetching(work.upcoming, work.num_slices);
  const std::byte* block = work.blocks;
  auto* tile = static_cast<float*>(work.tiles);
  for (std::int64_t slice = 0; slice < work.num_slices; ++slice) {
    prefetching.step();
    for (int half = 0; half < 2; ++half, tile += kTile) {
      for (int first = 0; first < kPanel; first += kLanes) {
        unpack_lanes<format>(tile_weights(block, format, half) + first * 4,
                             tile_scales(block, format, half) + first * 2,
                             work.row_scales + half * kPanel + first, tile + first,
                             std::make_integer_sequence<int, kSlice / 2>{});
      }
    }
    block += block_bytes(format);
  }
}

void unpack_bf16(const Unpacking& work) {
  Prefetching prefetching(work.upcoming, work.num_slices);
  const auto* weights = reinterpret_cast<const std::uint16_t*>(work.blocks);
  auto* tile = static_cast<float*>(work.tiles);
  for (std::int64_t slice = 0; slice < work.num_slices; ++slice) {
    prefetching.step();
    for (int i = 0; i < 2 * kTile; i += avx2::FloatVector::kLanes) {
      avx2::FloatVector::load_bf16(weights + i).store(tile + i);
    }
    weights += 2 * kTile;
    tile += 2 * kTile;
  }
}

constexpr ProductKernels kKernels = {
    Type::kF32,
    {nullptr, unpack_bf16, unpack_integers<WeightFormat::kInt8>,
     unpack_integers<WeightFormat::kInt6>, unpack_integers<WeightFormat::kInt5>,
     unpack_integers<WeightFormat::kInt4>},
    float_products::multiply<avx2::FloatVector, 3>,
    finishing::finish_rows<avx2::FloatVector>,
    [](std::int64_t) {},
    [] {},
};

}  // namespace

const ProductKernels& avx2_kernels() { return kKernels; }

}  // namespace antiphon::kernels
