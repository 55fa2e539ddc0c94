// Integers to bfloat16 with AVX-512's byte permutations, where lanes are inputs.
//
// One output's 32 inputs are a vector. A block of 16 or 32 levels has no more values than that:
// they are computed once, from scale and offset, and looked up by a permutation. More levels are
// put into the mantissas of floats, one instruction each, and become weights by a multiplication
// and addition as elsewhere. What comes out is `cut_value_of`, bit for bit.
#pragma once

#include "../avx512_bf16/products.h"

namespace antiphon::kernels::amx {

// What a tile's 16 outputs are multiplied with and what is added, in memory: kernels take one for
// all lanes at a time. `second`: of inputs from 16 on, kInt6 only.
struct alignas(64) Lines {
  float factors[kPanel];
  float addends[kPanel];
  float second_factors[kPanel];
  float second_addends[kPanel];
};

// A byte above these bits makes a float of 2^15 + byte.
inline constexpr int kByteFloat = 0x47000000;
inline constexpr float kByteOne = 32768;

constexpr bool has_table(WeightFormat format) {
  return format == WeightFormat::kInt4 || format == WeightFormat::kInt5;
}

// Else the compiler takes them out of registers, by permutations, which this has enough of.
__attribute__((always_inline)) inline void keep_in_memory(Lines& lines) {
  __asm__("" : "+m"(lines));
}

template <WeightFormat format>
__attribute__((always_inline)) inline void load_lines(const std::byte* scales,
                                                      const float* row_scales, Lines& lines) {
  const __m512 rows = _mm512_loadu_ps(row_scales);
  if constexpr (has_table(format)) {
    const avx512::Line line = avx512_bf16::stretched_line_of<format>(scales, rows, 0);
    _mm512_store_ps(lines.factors, line.factor);
    _mm512_store_ps(lines.addends, line.addend);
  } else {
    constexpr int kMiddle = 1 << (value_bits(format) - 1);
    const __m512 addend = _mm512_set1_ps(-kByteOne - kMiddle);
    const __m512 range = _mm512_set1_ps(1.0F / (2 * kMiddle));
    const auto store = [&](int second, float* factors, float* addends) {
      const __m512 factor =
          _mm512_mul_ps(avx512_bf16::stretched_line_of<format>(scales, rows, second).factor, range);
      _mm512_store_ps(factors, factor);
      _mm512_store_ps(addends, _mm512_mul_ps(factor, addend));
    };
    store(0, lines.factors, lines.addends);
    if constexpr (format == WeightFormat::kInt6) {
      store(1, lines.second_factors, lines.second_addends);
    }
  }
  keep_in_memory(lines);
}

// As cut_to_pairs, by one instruction of the port that shuffles. While tiles are multiplied the
// other port alone adds and multiplies, and shifts as well.
__attribute__((always_inline)) inline __m512i shuffle_to_pairs(__m512 even, __m512 odd) {
  constexpr __mmask64 kLowerHalves = 0x3333333333333333;
  const __m512i upper_halves = _mm512_set4_epi32(0x0F0E0F0E, 0x0B0A0B0A, 0x07060706, 0x03020302);
  return _mm512_mask_shuffle_epi8(_mm512_castps_si512(odd), kLowerHalves, _mm512_castps_si512(even),
                                  upper_halves);
}

inline constexpr std::make_integer_sequence<int, kPanel> kOutputs;

// Constants that permutations take.
template <int num>
struct alignas(64) Bytes {
  std::uint8_t at[num];
};

// Of both outputs in a vector of 64 bytes, in `groups` of 4 bytes 8 apart or in 32 in a row: where
// the inputs 2 p + parity lie that go into lane p.
constexpr Bytes<64> places_of_inputs(bool in_groups, int output, int parity) {
  Bytes<64> bytes = {};
  for (int p = 0; p < 16; ++p) {
    const int k = 2 * p + parity;
    bytes.at[4 * p + 1] =
        static_cast<std::uint8_t>(in_groups ? k / 4 * 8 + output * 4 + k % 4 : output * 32 + k);
  }
  return bytes;
}

template <bool in_groups>
struct Places {
  static constexpr Bytes<64> kPlaces[2][2] = {
      {places_of_inputs(in_groups, 0, 0), places_of_inputs(in_groups, 0, 1)},
      {places_of_inputs(in_groups, 1, 0), places_of_inputs(in_groups, 1, 1)}};

  // 2^15 + value of the inputs 2 p + parity.
  template <int output, int parity>
  __attribute__((always_inline)) static __m512 floats(__m512i bytes) {
    constexpr __mmask64 kSecondBytes = 0x2222222222222222;
    const __m512i places = _mm512_load_si512(&kPlaces[output][parity]);
    return _mm512_castsi512_ps(
        _mm512_mask_permutexvar_epi8(_mm512_set1_epi32(kByteFloat), kSecondBytes, places, bytes));
  }
};

__attribute__((always_inline)) inline __m512i vector_at(const std::byte* weights, int index) {
  return _mm512_load_si512(weights + index * 64);
}

// Each `unpack` calls `emit(output, weights)` for 16 outputs in their order.
template <WeightFormat format>
struct OutputRows;

template <>
struct OutputRows<WeightFormat::kInt4> {
  template <class Emit>
  __attribute__((always_inline)) static void unpack(const std::byte* weights, const Lines& lines,
                                                    Emit emit) {
    const __m512 steps =
        _mm512_set_ps(1.9375F, 1.875F, 1.8125F, 1.75F, 1.6875F, 1.625F, 1.5625F, 1.5F, 1.4375F,
                      1.375F, 1.3125F, 1.25F, 1.1875F, 1.125F, 1.0625F, 1.0F);
    const __m512i upper_halves = _mm512_set1_epi16(1);
    avx512::unrolled(kOutputs, [&](auto c) __attribute__((always_inline)) {
      const __m512i words = vector_at(weights, c / 4);
      const __m512i levels = c % 4 == 0 ? words : _mm512_ror_epi32(words, c % 4 * 4);
      // Upper halves of floats: what is left of them when they are cut.
      const __m512 table = _mm512_fmadd_ps(steps, _mm512_set1_ps(lines.factors[c]),
                                           _mm512_set1_ps(lines.addends[c]));
      emit(c, _mm512_permutexvar_epi16(_mm512_or_si512(levels, upper_halves),
                                       _mm512_castps_si512(table)));
    });
  }
};

template <>
struct OutputRows<WeightFormat::kInt5> {
  template <class Emit>
  __attribute__((always_inline)) static void unpack(const std::byte* weights, const Lines& lines,
                                                    Emit emit) {
    const __m512 even =
        _mm512_set_ps(1.9375F, 1.875F, 1.8125F, 1.75F, 1.6875F, 1.625F, 1.5625F, 1.5F, 1.4375F,
                      1.375F, 1.3125F, 1.25F, 1.1875F, 1.125F, 1.0625F, 1.0F);
    const __m512 odd = _mm512_add_ps(even, _mm512_set1_ps(0.03125F));
    avx512::unrolled(kOutputs, [&](auto c) __attribute__((always_inline)) {
      const __m512 factor = _mm512_set1_ps(lines.factors[c]);
      const __m512 addend = _mm512_set1_ps(lines.addends[c]);
      const __m512i table = shuffle_to_pairs(_mm512_fmadd_ps(even, factor, addend),
                                             _mm512_fmadd_ps(odd, factor, addend));
      emit(c, _mm512_permutexvar_epi16(levels<c>(weights), table));
    });
  }

 private:
  template <int c>
  __attribute__((always_inline)) static __m512i levels(const std::byte* weights) {
    if constexpr (c == 15) {
      const auto bit = [&](__m512i others, int index) __attribute__((always_inline)) {
        const __m512i moved = _mm512_srli_epi16(vector_at(weights, index), 15 - index);
        // moved & mask | others
        return _mm512_ternarylogic_epi32(moved, _mm512_set1_epi16(static_cast<short>(1 << index)),
                                         others, 0xEA);
      };
      __m512i bits = _mm512_srli_epi16(vector_at(weights, 0), 15);
      bits = bit(bits, 1);
      bits = bit(bits, 2);
      bits = bit(bits, 3);
      return bit(bits, 4);
    } else {
      const __m512i words = vector_at(weights, c / 3);
      return c % 3 == 0 ? words : _mm512_srli_epi16(words, c % 3 * 5);
    }
  }
};

template <>
struct OutputRows<WeightFormat::kInt8> {
  template <class Emit>
  __attribute__((always_inline)) static void unpack(const std::byte* weights, const Lines& lines,
                                                    Emit emit) {
    avx512::unrolled(kOutputs, [&](auto c) __attribute__((always_inline)) {
      const __m512i bytes = vector_at(weights, c / 2);
      const __m512 factor = _mm512_set1_ps(lines.factors[c]);
      const __m512 addend = _mm512_set1_ps(lines.addends[c]);
      const auto values = [&](auto parity) __attribute__((always_inline)) {
        return _mm512_fmadd_ps(Places<false>::floats<c % 2, parity>(bytes), factor, addend);
      };
      const __m512 even = values(std::integral_constant<int, 0>{});
      const __m512 odd = values(std::integral_constant<int, 1>{});
      // Half of them each way, for both ports have as much to do then.
      emit(c, c % 2 == 0 ? shuffle_to_pairs(even, odd) : avx512_bf16::cut_to_pairs(even, odd));
    });
  }
};

template <>
struct OutputRows<WeightFormat::kInt6> {
  template <class Emit>
  __attribute__((always_inline)) static void unpack(const std::byte* weights, const Lines& lines,
                                                    Emit emit) {
    avx512::unrolled(kPairs, [&](auto pair) __attribute__((always_inline)) {
      // Eight values of six bits, a byte each.
      const __m512i bytes = _mm512_and_si512(
          _mm512_multishift_epi64_epi8(_mm512_set1_epi64(0x2A241E18120C0600), words<pair>(weights)),
          _mm512_set1_epi8(63));
      emit_output<2 * pair>(bytes, lines, emit);
      emit_output<2 * pair + 1>(bytes, lines, emit);
    });
  }

 private:
  static constexpr std::make_integer_sequence<int, kPanel / 2> kPairs{};

  template <int c, class Emit>
  __attribute__((always_inline)) static void emit_output(__m512i bytes, const Lines& lines,
                                                         Emit emit) {
    constexpr __mmask16 kSecond = 0xFF00;
    const __m512 factor = _mm512_mask_blend_ps(kSecond, _mm512_set1_ps(lines.factors[c]),
                                               _mm512_set1_ps(lines.second_factors[c]));
    const __m512 addend = _mm512_mask_blend_ps(kSecond, _mm512_set1_ps(lines.addends[c]),
                                               _mm512_set1_ps(lines.second_addends[c]));
    const __m512 even = _mm512_fmadd_ps(Places<true>::floats<c % 2, 0>(bytes), factor, addend);
    const __m512 odd = _mm512_fmadd_ps(Places<true>::floats<c % 2, 1>(bytes), factor, addend);
    emit(std::integral_constant<int, c>{}, shuffle_to_pairs(even, odd));
  }

  template <int pair>
  __attribute__((always_inline)) static __m512i words(const std::byte* weights) {
    if constexpr (pair < 6) {
      return vector_at(weights, pair);
    } else {
      constexpr int kFirst = (pair - 6) * 3;
      const __m512i low = _mm512_srli_epi64(vector_at(weights, kFirst), 48);
      const __m512i middle = _mm512_srli_epi64(vector_at(weights, kFirst + 1), 32);
      const __m512i high = _mm512_srli_epi64(vector_at(weights, kFirst + 2), 16);
      // middle & mask | low, and so on
      const __m512i bits =
          _mm512_ternarylogic_epi64(middle, _mm512_set1_epi64(0xFFFF0000), low, 0xEA);
      return _mm512_ternarylogic_epi64(high, _mm512_set1_epi64(0xFFFF00000000), bits, 0xEA);
    }
  }
};

// Tiles of one slice after the other, whose rows are outputs. Lines are made a slice ahead: a
// vector that has just been stored is slow to be read in parts.
template <WeightFormat format>
class Slices {
 public:
  explicit Slices(const Unpacking& work)
      : work_(work), block_(work.blocks), ahead_(work.blocks), last_(work.num_slices - 1) {
    load_lines_of(0);
  }

  // Goes on to slice `slice`, from 0 on.
  __attribute__((always_inline)) void begin(std::int64_t slice) {
    if (slice > 0) {
      block_ += block_bytes(format);
    }
    lines_ = &ring_[slice % 2 * 2];
    const std::int64_t ahead = slice + kSlicesAhead - work_.num_slices;
    if (ahead < 0) {
      ahead_ = block_ + kSlicesAhead * block_bytes(format);
    } else if (work_.upcoming.num_bytes > 0) {
      ahead_ = work_.upcoming.first + ahead * block_bytes(format);
    }
    if (slice < last_) {
      load_lines_of(slice + 1);
    }
  }

  template <int half>
  __attribute__((always_inline)) void write(std::byte* tile) const {
    OutputRows<format>::unpack(tile_weights(block_, format, half), lines_[half],
                               [&](auto c, __m512i row) __attribute__((always_inline)) {
                                 _mm512_store_si512(tile + c * 64, row);
                                 ask_for<half * kPanel + c>();
                               });
  }

 private:
  // Enough for memory to answer; of what lies further ahead, some is gone when its turn comes.
  static constexpr int kSlicesAhead = 8;

  // A block's lines are asked for evenly over its outputs.
  template <int output>
  __attribute__((always_inline)) void ask_for() const {
    constexpr int kLines = static_cast<int>(block_bytes(format) / 64);
    constexpr int kLine = output * kLines / kPair;
    if constexpr (kLine < (output + 1) * kLines / kPair) {
      __builtin_prefetch(ahead_ + kLine * 64);
    }
  }

  // Of the slice behind the present one, or of the first.
  __attribute__((always_inline)) void load_lines_of(std::int64_t slice) {
    const std::byte* const block = slice == 0 ? block_ : block_ + block_bytes(format);
    for (int half = 0; half < 2; ++half) {
      load_lines<format>(tile_scales(block, format, half), work_.row_scales + half * kPanel,
                         ring_[slice % 2 * 2 + half]);
    }
  }

  const Unpacking& work_;
  const std::byte* block_;
  const std::byte* ahead_;
  const std::int64_t last_;
  const Lines* lines_ = nullptr;
  Lines ring_[4];
};

}  // namespace antiphon::kernels::amx
