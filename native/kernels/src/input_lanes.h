// Integers of one output where lanes are inputs, as tile_layout.h tells.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tile_layout.h"

namespace antiphon::kernels {

// Writes 32 values of output `channel`, beside those of other outputs.
void store_inputs(std::byte* tile, WeightFormat format, int channel, const std::uint8_t* values);

// What was stored.
void load_inputs(const std::byte* tile, WeightFormat format, int channel, std::uint8_t* values);

}  // namespace antiphon::kernels
