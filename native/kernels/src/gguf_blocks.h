// The blocks of GGUF files.
#pragma once

#include <cstddef>
#include <cstdint>

#include "antiphon/kernels/packed_matrix.h"
#include "quantization.h"

namespace antiphon::kernels {

struct GgufBlock {
  std::int64_t num_weights;
  std::size_t num_bytes;
};

// Throws std::invalid_argument where there is no such type.
GgufBlock gguf_block(GgufType type);

// Writes a block's slices of 32 in the format `gguf_format(type)`, scales as the file has them.
void read_gguf_block(GgufType type, const std::byte* block, QuantizedSlice* slices);

}  // namespace antiphon::kernels
