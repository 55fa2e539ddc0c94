#include "antiphon/kernels/cpu_features.h"

#include <initializer_list>

#ifdef ANTIPHON_KERNELS_X86
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#endif

namespace antiphon::kernels {
namespace {

#ifdef ANTIPHON_KERNELS_X86

struct Leaf {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
};

Leaf ask(unsigned leaf, unsigned subleaf) {
  Leaf answer;
  if (__get_cpuid_count(leaf, subleaf, &answer.eax, &answer.ebx, &answer.ecx, &answer.edx) == 0) {
    return {};
  }
  return answer;
}

bool all(unsigned word, std::initializer_list<int> bits) {
  for (const int bit : bits) {
    if ((word >> bit & 1U) == 0) {
      return false;
    }
  }
  return true;
}

// The states that the operating system saves for a thread, by bit; 0 where it can't be asked.
std::uint64_t saved_states() {
  if (!all(ask(1, 0).ecx, {27})) {
    return 0;
  }
  unsigned low = 0;
  unsigned high = 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return std::uint64_t{high} << 32U | low;
}

// Linux gives a process room for tiles only where it has asked for it.
bool may_use_tiles() {
#ifdef __linux__
  constexpr long kRequestPermission = 0x1023;
  constexpr long kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

Isa find_best() {
  const Leaf basic = ask(1, 0);
  const Leaf extended = ask(7, 0);
  const std::uint64_t states = saved_states();
  constexpr std::uint64_t kVectors = 0x6;
  constexpr std::uint64_t kWideVectors = 0xE6;
  constexpr std::uint64_t kTiles = 0x60000;
  // FMA, F16C; AVX2.
  if ((states & kVectors) != kVectors || !all(basic.ecx, {12, 29}) || !all(extended.ebx, {5})) {
    return Isa::kPortable;
  }
  // F, DQ, BW, VL.
  if ((states & kWideVectors) != kWideVectors || !all(extended.ebx, {16, 17, 30, 31})) {
    return Isa::kAvx2;
  }
  if (!all(ask(7, 1).eax, {5})) {
    return Isa::kAvx512;
  }
  // VBMI, which all that have tiles have; AMX-BF16, AMX-TILE.
  if ((states & kTiles) != kTiles || !all(extended.ecx, {1}) || !all(extended.edx, {22, 24}) ||
      !may_use_tiles()) {
    return Isa::kAvx512Bf16;
  }
  return Isa::kAmx;
}

// Dot products of bytes, in instructions of AVX-512 and without.
bool find_wide_bytes() { return all(ask(7, 0).ecx, {11}); }
bool find_bytes() { return all(ask(7, 1).eax, {4}); }

#else

Isa find_best() { return Isa::kPortable; }
bool find_wide_bytes() { return false; }
bool find_bytes() { return false; }

#endif

}  // namespace

Isa best_isa() {
  static const Isa best = find_best();
  return best;
}

Isa base_of(Isa isa) {
  switch (isa) {
    case Isa::kAvxVnni:
      return Isa::kAvx2;
    case Isa::kAvx512Vnni:
      return Isa::kAvx512;
    default:
      return isa;
  }
}

bool has(Isa isa) {
  static const bool has_bytes = find_bytes();
  static const bool has_wide_bytes = find_wide_bytes();
  if ((isa == Isa::kAvxVnni && !has_bytes) || (isa == Isa::kAvx512Vnni && !has_wide_bytes)) {
    return false;
  }
  return base_of(isa) <= best_isa();
}

const char* name(Isa isa) {
  switch (isa) {
    case Isa::kPortable:
      return "portable";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
    case Isa::kAvx512Bf16:
      return "avx512_bf16";
    case Isa::kAmx:
      return "amx";
    case Isa::kAvxVnni:
      return "avx_vnni";
    case Isa::kAvx512Vnni:
      return "avx512_vnni";
  }
  return "unknown";
}

}  // namespace antiphon::kernels
