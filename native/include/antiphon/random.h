// A counter-based generator: a draw depends on its coordinates alone, never on batch or history.
#pragma once

#include <cstdint>

namespace antiphon {

// The finalizer of splitmix64: a bijection of 64 bits in which each input bit sways all output
// bits.
constexpr std::uint64_t Mix64(std::uint64_t x) {
  x ^= x >> 30;
  x *= 0xbf58476d1ce4e5b9ULL;
  x ^= x >> 27;
  x *= 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

inline constexpr std::uint64_t kGoldenGamma = 0x9e3779b97f4a7c15ULL;

// A number in [0, 1) with 53 random bits: the counter-th of a splitmix64 stream that starts where
// the seed is mixed to. (Mixing the counter too and joining the two by XOR would let equal inputs
// cancel.) The formula is part of what a seed promises to users.
constexpr double Uniform(std::uint64_t seed, std::uint32_t output_index,
                         std::uint32_t output_position) {
  const std::uint64_t counter = (static_cast<std::uint64_t>(output_index) << 32) |
                                static_cast<std::uint64_t>(output_position);
  const std::uint64_t key = Mix64(seed + kGoldenGamma);
  const std::uint64_t bits = Mix64(key + (counter + 1) * kGoldenGamma);
  return static_cast<double>(bits >> 11) * 0x1.0p-53;
}

}  // namespace antiphon
