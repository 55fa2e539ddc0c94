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

// The draws of one output: numbers in [0, 1) with 53 random bits. That of counter = output_index *
// 2^32 + output_position is the counter-th of a splitmix64 stream that starts where the seed is
// mixed to: mix(mix(seed + gamma) + (counter + 1) * gamma). (Mixing the counter too and joining the
// two by XOR would let equal inputs cancel.) The formula is part of what a seed promises to users.
class Draws {
 public:
  constexpr Draws() = default;
  constexpr Draws(std::uint64_t seed, std::uint32_t output_index)
      : first_(Mix64(seed + kGoldenGamma) +
               ((static_cast<std::uint64_t>(output_index) << 32) + 1) * kGoldenGamma) {}

  constexpr double At(std::uint32_t output_position) const {
    const std::uint64_t bits = Mix64(first_ + output_position * kGoldenGamma);
    return static_cast<double>(static_cast<std::int64_t>(bits >> 11)) * 0x1.0p-53;
  }

 private:
  std::uint64_t first_ = 0;
};

// One draw alone.
constexpr double Uniform(std::uint64_t seed, std::uint32_t output_index,
                         std::uint32_t output_position) {
  return Draws(seed, output_index).At(output_position);
}

}  // namespace antiphon
