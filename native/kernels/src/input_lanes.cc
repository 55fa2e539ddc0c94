#include "input_lanes.h"

#include <bit>
#include <cstring>

namespace antiphon::kernels {
namespace {

template <class Word>
Word load(const std::byte* tile, int index) {
  Word word = 0;
  std::memcpy(&word, tile + index * static_cast<int>(sizeof(Word)), sizeof(Word));
  return word;
}

template <class Word>
void store(std::byte* tile, int index, Word word) {
  std::memcpy(tile + index * static_cast<int>(sizeof(Word)), &word, sizeof(Word));
}

// `width` bits of a word from bit `first`.
template <class Word>
void set_bits(std::byte* tile, int index, unsigned first, unsigned width, unsigned value) {
  const unsigned mask = ((1U << width) - 1) << first;
  const unsigned word = load<Word>(tile, index);
  store(tile, index, static_cast<Word>((word & ~mask) | (value << first & mask)));
}

template <class Word>
unsigned get_bits(const std::byte* tile, int index, unsigned first, unsigned width) {
  return load<Word>(tile, index) >> first & ((1U << width) - 1);
}

constexpr int word_of_int4(int channel, int k) { return channel / 4 * 16 + k / 2; }
constexpr unsigned shift_of_int4(int channel, int k) {
  return static_cast<unsigned>((k % 2 * 4 + channel % 4) * 4);
}

void store_int4(std::byte* tile, int channel, const std::uint8_t* values) {
  for (int k = 0; k < kSlice; ++k) {
    const int index = word_of_int4(channel, k);
    const unsigned shift = shift_of_int4(channel, k);
    const std::uint32_t word = std::rotr(load<std::uint32_t>(tile, index), 1);
    const std::uint32_t changed = (word & ~(15U << shift)) | (values[k] & 15U) << shift;
    store(tile, index, std::rotl(changed, 1));
  }
}

void load_int4(const std::byte* tile, int channel, std::uint8_t* values) {
  for (int k = 0; k < kSlice; ++k) {
    const std::uint32_t word = std::rotr(load<std::uint32_t>(tile, word_of_int4(channel, k)), 1);
    values[k] = static_cast<std::uint8_t>(word >> shift_of_int4(channel, k) & 15U);
  }
}

constexpr int kLastOfInt5 = 15;  // the output that others' words have left bits for

void store_int5(std::byte* tile, int channel, const std::uint8_t* values) {
  for (int k = 0; k < kSlice; ++k) {
    if (channel < kLastOfInt5) {
      set_bits<std::uint16_t>(tile, channel / 3 * kSlice + k,
                              static_cast<unsigned>(channel % 3 * 5), 5, values[k]);
      continue;
    }
    for (int bit = 0; bit < 5; ++bit) {
      set_bits<std::uint16_t>(tile, bit * kSlice + k, 15, 1, values[k] >> bit & 1U);
    }
  }
}

void load_int5(const std::byte* tile, int channel, std::uint8_t* values) {
  for (int k = 0; k < kSlice; ++k) {
    unsigned value = 0;
    if (channel < kLastOfInt5) {
      value = get_bits<std::uint16_t>(tile, channel / 3 * kSlice + k,
                                      static_cast<unsigned>(channel % 3 * 5), 5);
    } else {
      for (int bit = 0; bit < 5; ++bit) {
        value |= get_bits<std::uint16_t>(tile, bit * kSlice + k, 15, 1) << bit;
      }
    }
    values[k] = static_cast<std::uint8_t>(value);
  }
}

// Where byte `i` of three lies that are inputs 4 `group` …
constexpr int byte_of_int6(int channel, int group, int i) {
  constexpr int kWholePairs = 6;
  const int pair = channel / 2;
  const int byte = channel % 2 * 3 + i;
  return pair < kWholePairs ? pair * 64 + group * 8 + byte
                            : ((pair - kWholePairs) * 3 + byte / 2) * 64 + group * 8 + 6 + byte % 2;
}

void store_int6(std::byte* tile, int channel, const std::uint8_t* values) {
  for (int group = 0; group < kSlice / 4; ++group) {
    unsigned bits = 0;
    for (unsigned i = 0; i < 4; ++i) {
      bits |= (values[group * 4 + static_cast<int>(i)] & 63U) << 6 * i;
    }
    for (int i = 0; i < 3; ++i) {
      tile[byte_of_int6(channel, group, i)] = static_cast<std::byte>(bits >> 8 * i & 255U);
    }
  }
}

void load_int6(const std::byte* tile, int channel, std::uint8_t* values) {
  for (int group = 0; group < kSlice / 4; ++group) {
    unsigned bits = 0;
    for (int i = 0; i < 3; ++i) {
      bits |= std::to_integer<unsigned>(tile[byte_of_int6(channel, group, i)]) << 8 * i;
    }
    for (int i = 0; i < 4; ++i) {
      values[group * 4 + i] = static_cast<std::uint8_t>(bits >> 6 * i & 63U);
    }
  }
}

}  // namespace

void store_inputs(std::byte* tile, WeightFormat format, int channel, const std::uint8_t* values) {
  switch (format) {
    case WeightFormat::kInt4:
      return store_int4(tile, channel, values);
    case WeightFormat::kInt5:
      return store_int5(tile, channel, values);
    case WeightFormat::kInt6:
      return store_int6(tile, channel, values);
    default:
      std::memcpy(tile + channel * kSlice, values, kSlice);
  }
}

void load_inputs(const std::byte* tile, WeightFormat format, int channel, std::uint8_t* values) {
  switch (format) {
    case WeightFormat::kInt4:
      return load_int4(tile, channel, values);
    case WeightFormat::kInt5:
      return load_int5(tile, channel, values);
    case WeightFormat::kInt6:
      return load_int6(tile, channel, values);
    default:
      std::memcpy(values, tile + channel * kSlice, kSlice);
  }
}

}  // namespace antiphon::kernels
