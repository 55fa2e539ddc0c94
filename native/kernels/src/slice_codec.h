// Slices of one output, into a tile and out of it.
#pragma once

#include <cstddef>

#include "quantization.h"
#include "tile_layout.h"

namespace antiphon::kernels {

struct TileColumnPlace {
  std::byte* block;
  WeightFormat format;
  IntegerLayout layout;
  int half;
  int channel;  // within the tile
};

// Writes the output's 32 weights and their scales, divided by `row_scale`. Where lanes are inputs,
// outputs of one tile share bytes: one thread at a time may write to it.
void store_slice(const TileColumnPlace& place, const QuantizedSlice& slice, float row_scale);

// What was stored.
QuantizedSlice load_slice(const TileColumnPlace& place, float row_scale);

}  // namespace antiphon::kernels
