// What lies in the processor's caches.
#pragma once

#include <cstddef>
#include <span>

namespace antiphon::kernels {

// Takes memory out of all of them, where there are instructions for it: so that what is measured
// reads it from where it lies.
void evict(std::span<const std::byte> bytes);

}  // namespace antiphon::kernels
