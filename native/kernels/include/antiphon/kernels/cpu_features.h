// Which instructions the kernels may use on this machine.
#pragma once

namespace antiphon::kernels {

// Instruction sets that kernels are written for. Each has all of those before it.
enum class Isa : int {
  kPortable = 0,    // what any machine has
  kAvx2 = 1,        // with FMA and F16C
  kAvx512 = 2,      // F, BW, DQ and VL
  kAvx512Bf16 = 3,  // dot products of bfloat16 pairs
  kAmx = 4,         // tiles of bfloat16
};

// Whether processor and operating system allow `isa`. The first call asks them, and asks Linux to
// let this process use tiles. Any thread.
bool has(Isa isa);

// The last one that this machine has.
Isa best_isa();

// As flags and logs write it: "portable", "avx2", "avx512", "avx512_bf16", "amx".
const char* name(Isa isa);

}  // namespace antiphon::kernels
