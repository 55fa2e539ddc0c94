#pragma once

#include <cstdint>

#include "antiphon/types.h"

namespace antiphon {

// The policy GUARANTEED_NO_EVICT: a request is admitted only when every block that it can still
// need is there for it, so that an admitted request always runs to its end and none is ever paused.
//
// It keeps no blocks back physically; it counts what admitted requests have yet to take. A prefix
// hit that a live request references costs nothing more; an unreferenced hit is part of what is
// available and is used up by the claim, so that it counts like a new block.
//
// Invariants:
//  1. reserved() is the sum over admitted requests of their need less the blocks that they hold.
//  2. reserved() never exceeds the blocks that an allocation can get.
//
// Not thread-safe.
class NoEvictCapacity {
 public:
  // Blocks that a request holds at its end. The last output token is never computed.
  static std::int32_t BlocksToCompletion(std::int32_t num_prompt, std::int32_t output_limit,
                                         std::int32_t block_tokens) {
    return BlocksFor(static_cast<std::int64_t>(num_prompt) + output_limit - 1, block_tokens);
  }

  // Whether a request may be admitted. `num_available`: blocks that an allocation can get now.
  bool Fits(std::int32_t num_needed, std::int32_t num_live_hits, std::int32_t num_available) const {
    return num_needed - num_live_hits <= num_available - reserved_;
  }

  // Blocks that the next admission may count on.
  std::int32_t Unreserved(std::int32_t num_available) const { return num_available - reserved_; }

  // An admitted request has yet to take `count` blocks.
  void Reserve(std::int32_t count) { reserved_ += count; }

  // It took `count` of them, or will not take them any more.
  // REQUIRES: count <= reserved()
  void Settle(std::int32_t count);

  std::int32_t reserved() const { return reserved_; }

 private:
  std::int32_t reserved_ = 0;
};

}  // namespace antiphon
