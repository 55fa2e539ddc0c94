// How 32 inputs × 16 outputs of weights lie in a tile.
//
// A tile is 32 rows of 16 lanes. In the order of channels a row is an input and a lane an output.
// In the order of pairs, which dot products of bfloat16 pairs take, rows 2p and 2p + 1 together are
// the inputs 2p and 2p + 1: output 0's two, output 1's two, and so on.
//
// How integers lie depends on what unpacks them. Where lanes are outputs, they lie in words of 32
// bits in the order of channels, so that a rotation and a mask bring 16 of them out. The weights of
// lane l in rows h, 2 + h, 4 + h … (h is 0 or 1), its *column*, are numbered by p, and p lies in
//   kInt8: byte p % 4 of word ((p / 4 * 2 + h) * 16 + l)
//   kInt4: four bits p % 8 of word ((p / 8 * 2 + h) * 16 + l)
//   kInt5: as kInt4, and the high bit in bit 16 h + p of word 64 + l
//   kInt6: as kInt4, and the two high bits in bits 2 p of word 64 + 16 h + l
// and the words below 64, of kInt8 all, are rotated by `word_rotation`.
// Where lanes are inputs, vectors of 64 bytes have the 32 inputs of a few outputs side by side, so
// that a shift brings the indices of one output's table out. Input k of output c lies in
//   kInt8: byte 32 c + k
//   kInt4: four bits k % 2 * 4 + c % 4 of word c / 4 * 16 + k / 2 of 32 bits, words rotated to the
//          left by 1
//   kInt5: bits c % 3 * 5 of word c / 3 * 32 + k of 16 bits; of output 15 bit b in bit 15 of word
//          32 b + k
//   kInt6: four inputs are three bytes, in words of 64 bits by k / 4. Outputs 2 i and 2 i + 1 have
//          the lower six bytes of vector i; 12 and 13 the upper two of vectors 0 to 2, 14 and 15
//          those of 3 to 5
// Where four inputs lie together, for dot products of bytes, input k of output c lies in
//   kInt8: byte k % 4 of word k / 4 * 16 + c of 32 bits
//   kInt4: the lower four bits (k / 4 even) or the upper ones of byte k % 4 of word k / 8 * 16 + c
//   kInt5: as kInt4, and the high bit in bit k % 4 * 8 + k / 4 of word 64 + c
//   kInt6: as kInt4, and the two high bits in bits k % 4 * 8 + k / 4 % 4 * 2 of word
//          64 + k / 16 * 16 + c
// A block has the integers of two tiles and then, of each, 16 scales and (not kInt8) 16 offsets or
// second scales, in float16.
#pragma once

#include <cstddef>
#include <cstdint>

#include "antiphon/kernels/packed_matrix.h"

namespace antiphon::kernels {

inline constexpr int kSlice = 32;         // inputs
inline constexpr int kPanel = 16;         // outputs
inline constexpr int kPair = 2 * kPanel;  // outputs
inline constexpr int kTile = kSlice * kPanel;

enum class IntegerLayout : int { kLanesAreOutputs, kLanesAreInputs, kQuads };

struct TileBytes {
  std::size_t weights;
  std::size_t scales;
};

constexpr TileBytes tile_bytes(WeightFormat format) {
  switch (format) {
    case WeightFormat::kF32:
      return {2048, 0};
    case WeightFormat::kBf16:
      return {1024, 0};
    case WeightFormat::kInt8:
      return {512, 32};
    case WeightFormat::kInt6:
      return {256 + 128, 64};
    case WeightFormat::kInt5:
      return {256 + 64, 64};
    case WeightFormat::kInt4:
      return {256, 64};
  }
  return {0, 0};
}

constexpr std::size_t block_bytes(WeightFormat format) {
  return 2 * (tile_bytes(format).weights + tile_bytes(format).scales);
}

// The tiles of a block, `half` 0 or 1.
template <class Byte>
Byte* tile_weights(Byte* block, WeightFormat format, int half) {
  return block + static_cast<std::size_t>(half) * tile_bytes(format).weights;
}

template <class Byte>
Byte* tile_scales(Byte* block, WeightFormat format, int half) {
  return block + 2 * tile_bytes(format).weights +
         static_cast<std::size_t>(half) * tile_bytes(format).scales;
}

constexpr int value_bits(WeightFormat format) {
  switch (format) {
    case WeightFormat::kInt8:
      return 8;
    case WeightFormat::kInt6:
      return 6;
    case WeightFormat::kInt5:
      return 5;
    case WeightFormat::kInt4:
      return 4;
    default:
      return 0;
  }
}

// By how much words are rotated to the left: so that in one of them a value's low bits are where a
// float has them that is to be 1 + value / 2^bits.
constexpr int word_rotation(WeightFormat format) {
  return (23 - value_bits(format)) % (format == WeightFormat::kInt8 ? 8 : 4);
}

enum class TileOrder : int { kChannels, kPairs };

// Where the inputs `parity`, `parity` + 2 … of an output lie.
struct Column {
  int h;
  int lane;
};

constexpr Column column_of(TileOrder order, int channel, int parity) {
  return order == TileOrder::kChannels ? Column{parity, channel}
                                       : Column{channel / 8, channel % 8 * 2 + parity};
}

// Among a tile's weights that aren't packed to words.
constexpr int index_of(const Column& column, int p) {
  return (2 * p + column.h) * 16 + column.lane;
}

}  // namespace antiphon::kernels
