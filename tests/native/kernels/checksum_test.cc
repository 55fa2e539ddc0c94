#include "antiphon/kernels/checksum.h"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <vector>

namespace antiphon::kernels {
namespace {

std::vector<std::byte> RandomBytes(std::size_t size) {
  std::mt19937 random(3);
  std::vector<std::byte> bytes(size);
  for (std::byte& byte : bytes) {
    byte = static_cast<std::byte>(random());
  }
  return bytes;
}

TEST(Checksum, SeesEachBitAndEachLength) {
  for (const std::size_t size : {1, 7, 64, 65, 200}) {
    std::vector<std::byte> bytes = RandomBytes(size);
    std::set<std::uint64_t> sums = {checksum(bytes)};
    for (std::size_t bit = 0; bit < 8 * size; ++bit) {
      bytes[bit / 8] ^= std::byte{1} << bit % 8;
      sums.insert(checksum(bytes));
      bytes[bit / 8] ^= std::byte{1} << bit % 8;
    }
    EXPECT_EQ(sums.size(), 8 * size + 1);
  }
  const std::vector<std::byte> zeros(300);
  std::set<std::uint64_t> sums;
  for (std::size_t size = 0; size <= zeros.size(); ++size) {
    sums.insert(checksum({zeros.data(), size}));
  }
  EXPECT_EQ(sums.size(), zeros.size() + 1);
}

TEST(Checksum, SeesWhatHasChangedPlaces) {
  const std::vector<std::byte> bytes = RandomBytes(4096);
  for (const std::size_t distance : {1, 8, 64, 2048}) {
    std::vector<std::byte> turned(bytes.begin() + static_cast<std::ptrdiff_t>(distance),
                                  bytes.end());
    turned.insert(turned.end(), bytes.begin(),
                  bytes.begin() + static_cast<std::ptrdiff_t>(distance));
    EXPECT_NE(checksum(turned), checksum(bytes));
  }
}

}  // namespace
}  // namespace antiphon::kernels
