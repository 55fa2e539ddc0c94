// Which instructions the kernels may use on this machine.
#pragma once

namespace antiphon::kernels {

// Instruction sets that kernels are written for. Each has all of those before it, up to kAmx. Those
// behind that are for products of weights that are integers; all else uses what they stand on. Such
// products take rows as integers too, 32 inputs with one scale.
enum class Isa : int {
  kPortable = 0,    // what any machine has
  kAvx2 = 1,        // with FMA and F16C
  kAvx512 = 2,      // F, BW, DQ and VL
  kAvx512Bf16 = 3,  // dot products of bfloat16 pairs
  kAmx = 4,         // tiles of bfloat16
  kAvxVnni = 5,     // AVX2, and dot products of bytes
  kAvx512Vnni = 6,  // AVX-512, and dot products of bytes
};

// Whether processor and operating system allow `isa`. The first call asks them, and asks Linux to
// let this process use tiles. Any thread.
bool has(Isa isa);

// The last one up to kAmx that this machine has.
Isa best_isa();

// What all but products of integers uses.
Isa base_of(Isa isa);

// As flags and logs write it: "portable", "avx2", "avx512", "avx512_bf16", "amx", "avx_vnni",
// "avx512_vnni".
const char* name(Isa isa);

}  // namespace antiphon::kernels
