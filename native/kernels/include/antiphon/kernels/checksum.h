// Whether bytes are still those that were written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace antiphon::kernels {

// A number that is another one for other bytes, but by chance. It is made as fast as memory is
// read, finds what disks and broken writes do, and is no match for malice.
std::uint64_t checksum(std::span<const std::byte> bytes);

}  // namespace antiphon::kernels
