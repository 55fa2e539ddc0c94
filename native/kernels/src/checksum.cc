#include "antiphon/kernels/checksum.h"

#include <array>
#include <cstring>

namespace antiphon::kernels {

namespace {

constexpr std::size_t kLanes = 8;  // so that a multiplication needn't wait for the one before
constexpr std::size_t kWord = sizeof(std::uint64_t);
constexpr std::uint64_t kFactor = 0x9E3779B97F4A7C15;  // odd: nothing is lost
constexpr int kHalf = 32;

std::uint64_t mix(std::uint64_t sum, std::uint64_t word) {
  const std::uint64_t product = (sum ^ word) * kFactor;
  // Brings upper bits down and keeps them above: were they only turned, the highest bit of a word
  // would look like another bit of the lane's next.
  return product ^ (product >> kHalf);
}

}  // namespace

std::uint64_t checksum(std::span<const std::byte> bytes) {
  std::array<std::uint64_t, kLanes> lanes{};
  for (std::size_t i = 0; i < kLanes; ++i) {
    lanes[i] = i + 1;
  }
  std::size_t place = 0;
  for (; place + kLanes * kWord <= bytes.size(); place += kLanes * kWord) {
    std::array<std::uint64_t, kLanes> words;
    std::memcpy(words.data(), bytes.data() + place, sizeof(words));
    for (std::size_t i = 0; i < kLanes; ++i) {
      lanes[i] = mix(lanes[i], words[i]);
    }
  }
  std::uint64_t sum = bytes.size();
  for (const std::uint64_t lane : lanes) {
    sum = mix(sum, lane);
  }
  for (; place < bytes.size(); ++place) {
    sum = mix(sum, std::to_integer<std::uint64_t>(bytes[place]));
  }
  return mix(sum, 0);
}

}  // namespace antiphon::kernels
