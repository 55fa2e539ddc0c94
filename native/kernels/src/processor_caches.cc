#include "antiphon/kernels/processor_caches.h"

#ifdef ANTIPHON_KERNELS_X86
#include <cpuid.h>
#include <immintrin.h>
#endif

namespace antiphon::kernels {

#ifdef ANTIPHON_KERNELS_X86

namespace {

constexpr std::size_t kLineBytes = 64;

// Many lines at once.
__attribute__((target("clflushopt"))) void evict_unordered(std::span<const std::byte> bytes) {
  for (std::size_t at = 0; at < bytes.size(); at += kLineBytes) {
    _mm_clflushopt(const_cast<std::byte*>(&bytes[at]));
  }
}

void evict_in_order(std::span<const std::byte> bytes) {
  for (std::size_t at = 0; at < bytes.size(); at += kLineBytes) {
    _mm_clflush(&bytes[at]);
  }
}

bool has_clflushopt() {
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  constexpr unsigned kBit = 23;
  return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0 && (ebx >> kBit & 1U) != 0;
}

}  // namespace

void evict(std::span<const std::byte> bytes) {
  static const bool unordered = has_clflushopt();
  (unordered ? evict_unordered : evict_in_order)(bytes);
  _mm_mfence();
}

#else

void evict(std::span<const std::byte>) {}

#endif

}  // namespace antiphon::kernels
