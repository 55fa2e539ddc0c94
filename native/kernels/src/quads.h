// Integers of one output where four inputs lie together, as tile_layout.h tells.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tile_layout.h"

namespace antiphon::kernels {

// Writes 32 values of output `channel`; other outputs' are untouched.
void store_quads(std::byte* tile, WeightFormat format, int channel, const std::uint8_t* values);

// What was stored.
void load_quads(const std::byte* tile, WeightFormat format, int channel, std::uint8_t* values);

}  // namespace antiphon::kernels
