// Which tokens a row may draw, put into its logits.
#pragma once

#include <cstdint>
#include <span>

namespace antiphon::kernels {

// Sets logits[i] to `floor` where bit i % 32 of words[i / 32] is not set, and leaves the others.
// REQUIRES: words hold a bit for each of the logits; bits behind them say nothing.
void mask_logits(std::span<float> logits, std::span<const std::uint32_t> words, float floor);

}  // namespace antiphon::kernels
