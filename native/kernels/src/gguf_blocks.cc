// Each block of GGUF has a float16 scale of its own, or is a super-block of 256 weights whose small
// integer scales are multiplied with one or two of float16.
#include "gguf_blocks.h"

#include <cstring>
#include <stdexcept>
#include <string>

#include "float16.h"

namespace antiphon::kernels {
namespace {

using Bytes = const std::uint8_t*;

float half_at(Bytes bytes) {
  return from_f16(static_cast<std::uint16_t>(bytes[0] | bytes[1] << 8));
}

// Weights i and i + 16 share a byte.
void read_q4_0(Bytes block, QuantizedSlice* slice) {
  const float scale = half_at(block);
  for (int i = 0; i < 16; ++i) {
    slice->values[i] = block[2 + i] & 15;
    slice->values[i + 16] = block[2 + i] >> 4;
  }
  slice->scales = {scale, scale};
  slice->offset = -8 * scale;
}

void read_q5_0(Bytes block, QuantizedSlice* slice) {
  const float scale = half_at(block);
  for (int i = 0; i < 16; ++i) {
    const int low_bit = block[2 + i / 8] >> i % 8 & 1;
    const int high_bit = block[4 + i / 8] >> i % 8 & 1;
    slice->values[i] = static_cast<std::uint8_t>((block[6 + i] & 15) | low_bit << 4);
    slice->values[i + 16] = static_cast<std::uint8_t>(block[6 + i] >> 4 | high_bit << 4);
  }
  slice->scales = {scale, scale};
  slice->offset = -16 * scale;
}

void read_q8_0(Bytes block, QuantizedSlice* slice) {
  const float scale = half_at(block);
  for (int i = 0; i < 32; ++i) {
    slice->values[i] = block[2 + i] ^ 0x80;  // signed; 128 added
  }
  slice->scales = {scale, scale};
  slice->offset = 0;
}

struct SmallScales {
  int scale;
  int minimum;
};

// Eight pairs of six bits in twelve bytes: the last four pairs' high bits lie in the first eight.
SmallScales small_scales(Bytes scales, int i) {
  if (i < 4) {
    return {scales[i] & 63, scales[i + 4] & 63};
  }
  return {(scales[i + 4] & 15) | scales[i - 4] >> 6 << 4, scales[i + 4] >> 4 | scales[i] >> 6 << 4};
}

// Slices 2i and 2i + 1 share 32 bytes. Of Q5_K, bit i of 32 bytes is the high one of slice i.
void read_k_with_minimum(Bytes block, bool has_high_bits, QuantizedSlice* slices) {
  const float scale = half_at(block);
  const float minimum = half_at(block + 2);
  const Bytes high = block + 16;
  const Bytes low = has_high_bits ? block + 48 : block + 16;
  for (int i = 0; i < 8; ++i) {
    QuantizedSlice& slice = slices[i];
    for (int k = 0; k < 32; ++k) {
      const int value = low[i / 2 * 32 + k] >> i % 2 * 4 & 15;
      const int high_bit = has_high_bits ? high[k] >> i & 1 : 0;
      slice.values[k] = static_cast<std::uint8_t>(value | high_bit << 4);
    }
    const SmallScales small = small_scales(block + 4, i);
    slice.scales[0] = scale * static_cast<float>(small.scale);
    slice.scales[1] = slice.scales[0];
    slice.offset = -minimum * static_cast<float>(small.minimum);
  }
}

// Two halves of 128 weights: slices 0 and 2 of a half share 32 bytes of low bits, as do 1 and 3;
// all four share 32 bytes of high bits.
void read_q6_k(Bytes block, QuantizedSlice* slices) {
  const float scale = half_at(block + 208);
  for (int i = 0; i < 8; ++i) {
    const Bytes low = block + i / 4 * 64 + i % 2 * 32;
    const Bytes high = block + 128 + i / 4 * 32;
    QuantizedSlice& slice = slices[i];
    for (int k = 0; k < 32; ++k) {
      const int value = low[k] >> i % 4 / 2 * 4 & 15;
      slice.values[k] = static_cast<std::uint8_t>(value | (high[k] >> i % 4 * 2 & 3) << 4);
    }
    for (int half = 0; half < 2; ++half) {
      std::int8_t small = 0;
      std::memcpy(&small, block + 192 + 2 * i + half, 1);
      slice.scales[half] = scale * static_cast<float>(small);
    }
    slice.offset = 0;
  }
}

}  // namespace

GgufBlock gguf_block(GgufType type) {
  switch (type) {
    case GgufType::kQ4_0:
      return {32, 18};
    case GgufType::kQ5_0:
      return {32, 22};
    case GgufType::kQ8_0:
      return {32, 34};
    case GgufType::kQ4_K:
      return {256, 144};
    case GgufType::kQ5_K:
      return {256, 176};
    case GgufType::kQ6_K:
      return {256, 210};
  }
  throw std::invalid_argument("GGUF type " + std::to_string(static_cast<int>(type)) +
                              " is not supported; supported: Q4_0 (2), Q5_0 (6), Q8_0 (8), "
                              "Q4_K (12), Q5_K (13), Q6_K (14)");
}

void read_gguf_block(GgufType type, const std::byte* block, QuantizedSlice* slices) {
  const auto bytes = reinterpret_cast<Bytes>(block);
  switch (type) {
    case GgufType::kQ4_0:
      return read_q4_0(bytes, slices);
    case GgufType::kQ5_0:
      return read_q5_0(bytes, slices);
    case GgufType::kQ8_0:
      return read_q8_0(bytes, slices);
    case GgufType::kQ4_K:
      return read_k_with_minimum(bytes, false, slices);
    case GgufType::kQ5_K:
      return read_k_with_minimum(bytes, true, slices);
    case GgufType::kQ6_K:
      return read_q6_k(bytes, slices);
  }
}

WeightFormat gguf_format(GgufType type) {
  switch (type) {
    case GgufType::kQ4_0:
    case GgufType::kQ4_K:
      return WeightFormat::kInt4;
    case GgufType::kQ5_0:
    case GgufType::kQ5_K:
      return WeightFormat::kInt5;
    case GgufType::kQ8_0:
      return WeightFormat::kInt8;
    case GgufType::kQ6_K:
      return WeightFormat::kInt6;
  }
  gguf_block(type);  // throws
  return {};
}

std::size_t gguf_row_bytes(GgufType type, std::int64_t num_in) {
  const GgufBlock block = gguf_block(type);
  if (num_in < 1 || num_in % block.num_weights != 0) {
    throw std::invalid_argument("rows of " + std::to_string(num_in) + " weights are no blocks of " +
                                std::to_string(block.num_weights));
  }
  return static_cast<std::size_t>(num_in / block.num_weights) * block.num_bytes;
}

}  // namespace antiphon::kernels
