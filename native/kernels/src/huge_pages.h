// Memory for weights: large, and read from end to end each step.
#pragma once

#include <cstddef>
#include <memory>

#include "antiphon/kernels/packed_matrix.h"

namespace antiphon::kernels {

using MappedBytes = std::unique_ptr<std::byte, Unmap>;

// Zeros, in huge pages where the machine has them and the size is worth one: reads then miss the
// address cache a hundredth as often. Throws std::bad_alloc.
MappedBytes map_zeros(std::size_t num_bytes);

// Asks for huge pages where whole ones lie within memory that somebody else owns. Pages that were
// touched before stay as they are for a while.
void prefer_huge_pages(void* memory, std::size_t num_bytes);

}  // namespace antiphon::kernels
