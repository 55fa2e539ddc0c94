#include "slice_codec.h"

#include <bit>
#include <cstdint>
#include <cstring>

#include "float16.h"
#include "input_lanes.h"
#include "quads.h"

namespace antiphon::kernels {
namespace {

// The words of a column, by the index that tile_layout.h gives them.
class Words {
 public:
  explicit Words(std::byte* tile) : tile_(tile) {}
  std::uint32_t get(int index) const {
    std::uint32_t word = 0;
    std::memcpy(&word, tile_ + index * 4, 4);
    return word;
  }
  void set(int index, std::uint32_t word) { std::memcpy(tile_ + index * 4, &word, 4); }

  // The high bits of kInt5: two outputs, which two threads may pack at once, share a word.
  std::uint16_t get_half(int index) const {
    std::uint16_t half = 0;
    std::memcpy(&half, tile_ + index * 2, 2);
    return half;
  }
  void set_half(int index, std::uint16_t half) { std::memcpy(tile_ + index * 2, &half, 2); }

 private:
  std::byte* tile_;
};

int low_bits(WeightFormat format) { return format == WeightFormat::kInt8 ? 8 : 4; }

void store_low_bits(Words words, WeightFormat format, const Column& column,
                    const std::uint8_t* values) {
  const int bits = low_bits(format);
  const int per_word = 32 / bits;
  const auto mask = (1U << static_cast<unsigned>(bits)) - 1;
  for (int i = 0; i < 16 / per_word; ++i) {
    std::uint32_t word = 0;
    for (int b = 0; b < per_word; ++b) {
      word |= (values[i * per_word + b] & mask) << static_cast<unsigned>(b * bits);
    }
    words.set((i * 2 + column.h) * 16 + column.lane, std::rotl(word, word_rotation(format)));
  }
}

void load_low_bits(Words words, WeightFormat format, const Column& column, std::uint8_t* values) {
  const int bits = low_bits(format);
  const int per_word = 32 / bits;
  const auto mask = (1U << static_cast<unsigned>(bits)) - 1;
  for (int p = 0; p < 16; ++p) {
    const int index = (p / per_word * 2 + column.h) * 16 + column.lane;
    const std::uint32_t word = std::rotr(words.get(index), word_rotation(format));
    const auto shift = static_cast<unsigned>(p % per_word * bits);
    values[p] = static_cast<std::uint8_t>(word >> shift & mask);
  }
}

constexpr int kHighWords = 64;

void store_column(Words words, WeightFormat format, const Column& column,
                  const std::uint8_t* values) {
  store_low_bits(words, format, column, values);
  std::uint32_t high = 0;
  if (format == WeightFormat::kInt5) {
    for (unsigned p = 0; p < 16; ++p) {
      high |= (values[p] >> 4U & 1U) << p;
    }
    words.set_half((kHighWords + column.lane) * 2 + column.h, static_cast<std::uint16_t>(high));
  } else if (format == WeightFormat::kInt6) {
    for (unsigned p = 0; p < 16; ++p) {
      high |= (values[p] >> 4U & 3U) << 2 * p;
    }
    words.set(kHighWords + column.h * 16 + column.lane, high);
  }
}

void load_column(Words words, WeightFormat format, const Column& column, std::uint8_t* values) {
  load_low_bits(words, format, column, values);
  for (unsigned p = 0; p < 16; ++p) {
    unsigned high = 0;
    if (format == WeightFormat::kInt5) {
      high = words.get_half((kHighWords + column.lane) * 2 + column.h) >> p & 1U;
    } else if (format == WeightFormat::kInt6) {
      high = words.get(kHighWords + column.h * 16 + column.lane) >> 2 * p & 3U;
    }
    values[p] = static_cast<std::uint8_t>(values[p] | high << 4U);
  }
}

std::byte* scale_at(const TileColumnPlace& place, int second) {
  return tile_scales(place.block, place.format, place.half) + (second * kPanel + place.channel) * 2;
}

void store_f16(std::byte* target, float value) {
  const std::uint16_t bits = to_f16(value);
  std::memcpy(target, &bits, 2);
}

float load_f16(const std::byte* source) {
  std::uint16_t bits = 0;
  std::memcpy(&bits, source, 2);
  return from_f16(bits);
}

void store_integers(const TileColumnPlace& place, const std::uint8_t* values) {
  std::byte* const tile = tile_weights(place.block, place.format, place.half);
  if (place.layout == IntegerLayout::kLanesAreInputs) {
    store_inputs(tile, place.format, place.channel, values);
    return;
  }
  if (place.layout == IntegerLayout::kQuads) {
    store_quads(tile, place.format, place.channel, values);
    return;
  }
  for (int parity = 0; parity < 2; ++parity) {
    std::uint8_t column[16];
    for (int p = 0; p < 16; ++p) {
      column[p] = values[2 * p + parity];
    }
    store_column(Words(tile), place.format, column_of(TileOrder::kChannels, place.channel, parity),
                 column);
  }
}

void load_integers(const TileColumnPlace& place, std::uint8_t* values) {
  std::byte* const tile = tile_weights(place.block, place.format, place.half);
  if (place.layout == IntegerLayout::kLanesAreInputs) {
    load_inputs(tile, place.format, place.channel, values);
    return;
  }
  if (place.layout == IntegerLayout::kQuads) {
    load_quads(tile, place.format, place.channel, values);
    return;
  }
  for (int parity = 0; parity < 2; ++parity) {
    std::uint8_t column[16];
    load_column(Words(tile), place.format, column_of(TileOrder::kChannels, place.channel, parity),
                column);
    for (int p = 0; p < 16; ++p) {
      values[2 * p + parity] = column[p];
    }
  }
}

}  // namespace

void store_slice(const TileColumnPlace& place, const QuantizedSlice& slice, float row_scale) {
  store_integers(place, slice.values.data());
  store_f16(scale_at(place, 0), slice.scales[0] / row_scale);
  if (place.format == WeightFormat::kInt6) {
    store_f16(scale_at(place, 1), slice.scales[1] / row_scale);
  } else if (place.format != WeightFormat::kInt8) {
    store_f16(scale_at(place, 1), slice.offset / row_scale);
  }
}

QuantizedSlice load_slice(const TileColumnPlace& place, float row_scale) {
  QuantizedSlice slice = {};
  load_integers(place, slice.values.data());
  slice.scales[0] = load_f16(scale_at(place, 0)) * row_scale;
  slice.scales[1] = slice.scales[0];
  if (place.format == WeightFormat::kInt6) {
    slice.scales[1] = load_f16(scale_at(place, 1)) * row_scale;
  } else if (place.format != WeightFormat::kInt8) {
    slice.offset = load_f16(scale_at(place, 1)) * row_scale;
  }
  return slice;
}

}  // namespace antiphon::kernels
