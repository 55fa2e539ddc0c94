#include "antiphon/kernels/masking.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace antiphon::kernels {
namespace {

TEST(MaskLogits, PutsWhatIsNotAllowedToTheFloorAndNothingElse) {
  std::mt19937 random(7);
  for (std::size_t size = 1; size <= 200; ++size) {
    std::vector<float> logits(size);
    for (std::size_t index = 0; index < size; ++index) {
      logits[index] = static_cast<float>(index) + 0.5F;
    }
    std::vector<std::uint32_t> words((size + 31) / 32);
    for (std::uint32_t& word : words) {
      const auto kind = random() % 3;
      word = kind == 0 ? 0U : kind == 1 ? ~0U : static_cast<std::uint32_t>(random());
    }
    std::vector<float> masked = logits;
    mask_logits(masked, words, -1e30F);
    for (std::size_t index = 0; index < size; ++index) {
      const bool allowed = (words[index / 32] >> index % 32 & 1U) != 0;
      EXPECT_EQ(masked[index], allowed ? logits[index] : -1e30F) << index << " of " << size;
    }
  }
}

}  // namespace
}  // namespace antiphon::kernels
