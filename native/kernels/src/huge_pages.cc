#include "huge_pages.h"

#include <sys/mman.h>

#include <cstdint>
#include <new>

namespace antiphon::kernels {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kHugePage = std::size_t{2} << 20U;

std::byte* map(std::size_t num_bytes) {
  void* mapped =
      mmap(nullptr, num_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) {
    throw std::bad_alloc();
  }
  return static_cast<std::byte*>(mapped);
}

}  // namespace

void Unmap::operator()(std::byte* bytes) const { munmap(bytes, num_bytes); }

MappedBytes map_zeros(std::size_t num_bytes) {
  num_bytes = (num_bytes + kPage - 1) / kPage * kPage;
  if (num_bytes < kHugePage) {
    return {map(num_bytes), Unmap{num_bytes}};
  }
  // One more, so that a huge page can begin at the start; what is left over goes back.
  std::byte* const mapped = map(num_bytes + kHugePage);
  const std::size_t before =
      (kHugePage - reinterpret_cast<std::uintptr_t>(mapped) % kHugePage) % kHugePage;
  if (before > 0) {
    munmap(mapped, before);
  }
  munmap(mapped + before + num_bytes, kHugePage - before);
#ifdef MADV_HUGEPAGE
  madvise(mapped + before, num_bytes, MADV_HUGEPAGE);
#endif
  return {mapped + before, Unmap{num_bytes}};
}

void prefer_huge_pages([[maybe_unused]] void* memory, [[maybe_unused]] std::size_t num_bytes) {
#ifdef MADV_HUGEPAGE
  const std::size_t before =
      (kHugePage - reinterpret_cast<std::uintptr_t>(memory) % kHugePage) % kHugePage;
  if (num_bytes < before + kHugePage) {
    return;
  }
  const std::size_t whole = (num_bytes - before) / kHugePage * kHugePage;
  madvise(static_cast<std::byte*>(memory) + before, whole, MADV_HUGEPAGE);
#endif
}

}  // namespace antiphon::kernels
