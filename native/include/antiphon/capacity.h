#pragma once

#include <cstdint>

#include "antiphon/types.h"

namespace antiphon {

// Who may hold memory.
enum class CapacityPolicy : std::uint8_t {
  // A request is admitted when every block that it can still need is there for it: whoever is
  // admitted runs to its end and is never paused.
  kGuaranteedNoEvict,
  // A request is admitted when the blocks of its known tokens and of the next one are there. Where
  // that was too bold, the latest request is paused and computed again later.
  kMaxUtilization,
  // Like the first, but a batch is admitted only when the one before has ended.
  kStaticBatch,
};

const char* PolicyName(CapacityPolicy policy);

struct CapacityConfig {
  CapacityPolicy policy = CapacityPolicy::kGuaranteedNoEvict;
  std::int32_t num_blocks = 0;         // without scratch
  std::int32_t watermark_blocks = -1;  // -1: a hundredth of the pool, and one a running request
  std::int32_t cooldown_steps = 0;
};

// What is running when an admission is thought of.
struct Load {
  std::int32_t num_running = 0;
  bool any_decoding = false;
  std::int64_t num_plans = 0;  // so far
};

// Counts the blocks that are promised to admitted requests and decides who may be admitted.
//
// Nothing is kept back physically: the sum of what admitted requests were promised and have yet to
// take never exceeds what allocations can get. A prefix hit that a live request references costs
// nothing more; an unreferenced hit is part of what is available and is used up by the claim, so
// that it counts like a new block.
//
// Invariants:
//  1. reserved() is the sum over admitted requests of their promise less the blocks that they hold,
//     none below 0.
//  2. reserved() never exceeds the blocks that an allocation can get.
//
// Not thread-safe.
class Capacity {
 public:
  explicit Capacity(const CapacityConfig& config) : config_(config) {}

  CapacityPolicy policy() const { return config_.policy; }

  // Whether admissions are tried at all in a step.
  bool MayAdmit(const Load& load) const;

  // Blocks that an admitted request is promised. `to_completion`: all that it can need;
  // `for_next`: those of its known tokens and of the one after.
  std::int32_t BlocksToPromise(std::int32_t to_completion, std::int32_t for_next) const {
    return policy() == CapacityPolicy::kMaxUtilization ? for_next : to_completion;
  }

  // Blocks that the next admission may count on; may be negative. `num_available`: blocks that an
  // allocation can get now.
  std::int32_t Headroom(const Load& load, std::int32_t num_available) const;

  // Blocks that a running request may take beyond what it was promised.
  std::int32_t Unreserved(std::int32_t num_available) const { return num_available - reserved_; }

  // An admitted request has yet to take `count` blocks.
  void Reserve(std::int32_t count) { reserved_ += count; }

  // It took `count` of them, or will not take them any more.
  // REQUIRES: count <= reserved()
  void Settle(std::int32_t count);

  // A request was paused for want of memory.
  void NotePause(std::int64_t num_plans) { last_pause_ = num_plans; }

  std::int32_t reserved() const { return reserved_; }

 private:
  CapacityConfig config_;
  std::int32_t reserved_ = 0;
  std::int64_t last_pause_ = -1;  // -1: never
};

}  // namespace antiphon
