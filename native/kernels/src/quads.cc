#include "quads.h"

namespace antiphon::kernels {
namespace {

// `width` bits of a byte, from bit `shift` on.
struct BitsOfByte {
  int byte;
  unsigned shift;
  unsigned width;

  void set(std::byte* tile, unsigned value) const {
    const unsigned mask = ((1U << width) - 1) << shift;
    const unsigned before = std::to_integer<unsigned>(tile[byte]);
    tile[byte] = static_cast<std::byte>((before & ~mask) | (value << shift & mask));
  }
  unsigned get(const std::byte* tile) const {
    return std::to_integer<unsigned>(tile[byte]) >> shift & ((1U << width) - 1);
  }
};

constexpr int byte_of(int word, int channel, int k) { return (word * 16 + channel) * 4 + k % 4; }

constexpr int kHighWord = 4;

// Where the low bits lie: all eight of kInt8, four of the others.
BitsOfByte low_bits_of(WeightFormat format, int channel, int k) {
  if (format == WeightFormat::kInt8) {
    return {byte_of(k / 4, channel, k), 0, 8};
  }
  return {byte_of(k / 8, channel, k), k / 4 % 2 * 4U, 4};
}

BitsOfByte high_bits_of(WeightFormat format, int channel, int k) {
  const int quad = k / 4;
  if (format == WeightFormat::kInt5) {
    return {byte_of(kHighWord, channel, k), static_cast<unsigned>(quad), 1};
  }
  return {byte_of(kHighWord + quad / 4, channel, k), static_cast<unsigned>(quad % 4 * 2), 2};
}

bool has_high_bits(WeightFormat format) {
  return format == WeightFormat::kInt5 || format == WeightFormat::kInt6;
}

}  // namespace

void store_quads(std::byte* tile, WeightFormat format, int channel, const std::uint8_t* values) {
  for (int k = 0; k < kSlice; ++k) {
    low_bits_of(format, channel, k).set(tile, values[k]);
    if (has_high_bits(format)) {
      high_bits_of(format, channel, k).set(tile, values[k] / 16U);
    }
  }
}

void load_quads(const std::byte* tile, WeightFormat format, int channel, std::uint8_t* values) {
  for (int k = 0; k < kSlice; ++k) {
    unsigned value = low_bits_of(format, channel, k).get(tile);
    if (has_high_bits(format)) {
      value |= high_bits_of(format, channel, k).get(tile) << 4U;
    }
    values[k] = static_cast<std::uint8_t>(value);
  }
}

}  // namespace antiphon::kernels
