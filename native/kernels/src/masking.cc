#include "antiphon/kernels/masking.h"

#include <algorithm>
#include <array>
#include <cstddef>

namespace antiphon::kernels {

namespace {

constexpr std::size_t kWordBits = 32;

// A constant for each bit: compilers make vectors of that, and none of shifts that differ.
constexpr auto kBits = [] {
  std::array<std::uint32_t, kWordBits> bits{};
  for (std::size_t bit = 0; bit < kWordBits; ++bit) {
    bits[bit] = std::uint32_t{1} << bit;
  }
  return bits;
}();

void mask_word(float* logits, std::size_t size, std::uint32_t word, float floor) {
  for (std::size_t bit = 0; bit < size; ++bit) {
    logits[bit] = (word & kBits[bit]) != 0 ? logits[bit] : floor;
  }
}

}  // namespace

void mask_logits(std::span<float> logits, std::span<const std::uint32_t> words, float floor) {
  const std::size_t num_whole = logits.size() / kWordBits;
  // Nearly every word allows all of its tokens, or none.
  for (std::size_t index = 0; index < num_whole; ++index) {
    float* first = logits.data() + index * kWordBits;
    if (words[index] == 0) {
      std::fill_n(first, kWordBits, floor);
    } else if (words[index] != ~std::uint32_t{0}) {
      mask_word(first, kWordBits, words[index], floor);
    }
  }
  if (const std::size_t rest = logits.size() % kWordBits; rest != 0) {
    mask_word(logits.data() + num_whole * kWordBits, rest, words[num_whole], floor);
  }
}

}  // namespace antiphon::kernels
