// Checks over the whole state. Each is named after the invariant that it checks: I1 to I9 of blocks
// and index, I15 of the reservations, I16 of the order of running requests, I21 of token counts.
#include <algorithm>

#include "antiphon/engine_core.h"

namespace antiphon {

void EngineCore::CheckInvariants() const {
  cache_.CheckInvariants();
  requests_.CheckInvariants();
  CheckReferences();
  std::vector<bool> slots(static_cast<std::size_t>(config_.max_rows), false);
  std::int64_t num_waiting = 0;
  std::int64_t num_paused = 0;
  std::int64_t num_held = 0;
  std::int32_t reserved = 0;
  for (const Request& request : requests_.places()) {
    if (request.state == RequestState::kFree) {
      continue;
    }
    CheckRequest(request);
    num_waiting += request.waiting() ? 1 : 0;
    num_paused += request.state == RequestState::kPaused ? 1 : 0;
    num_held += request.state == RequestState::kHeld ? 1 : 0;
    if (request.slot != kNoSlot) {
      Check(!slots[static_cast<std::size_t>(request.slot)], "a slot has two owners");
      slots[static_cast<std::size_t>(request.slot)] = true;
      reserved += request.num_reserved();
    }
  }
  for (const SlotId slot : free_slots_) {
    Check(!slots[static_cast<std::size_t>(slot)], "I5: a free slot has an owner");
  }
  Check(std::ranges::count(slots, true) + static_cast<std::int32_t>(free_slots_.size()) ==
            config_.max_rows,
        "slots are lost");
  Check(reserved == capacity_.reserved(), "I15: the reservation is not the sum of what is to come");
  Check(reserved <= cache_.num_available(), "I15: more is promised than there is");
  Check(num_waiting == num_waiting_, "the count of waiting requests is wrong");
  Check(num_paused == num_paused_, "the count of paused requests is wrong");
  Check(num_held == num_held_, "the count of held requests is wrong");
  Check(std::ranges::is_sorted(running_,
                               [](const Request* a, const Request* b) { return a->precedes(*b); }),
        "I16: running requests are not in the order of their right to run");
}

// Counts who names each block: chains, and holds of steps in flight.
void EngineCore::CheckReferences() const {
  std::vector<std::int32_t> references(static_cast<std::size_t>(config_.num_blocks), 0);
  for (const Request& request : requests_.places()) {
    for (const BlockId block : request.chain.blocks) {
      ++references[static_cast<std::size_t>(block)];
    }
  }
  std::vector<std::int32_t> host_references(static_cast<std::size_t>(config_.num_host_blocks) + 1);
  std::int32_t num_in_flight = 0;
  for (const BufferSet& set : sets_) {
    Check(set.step != 0 || (set.holds.empty() && set.left_blocks.empty()),
          "I3: a step that is not in flight holds blocks");
    num_in_flight += set.step != 0 ? 1 : 0;
    for (const BlockId block : set.holds.device_blocks) {
      ++references[static_cast<std::size_t>(block)];
    }
    for (const BlockId block : set.left_blocks) {
      ++references[static_cast<std::size_t>(block)];
    }
    for (const BlockId block : set.holds.host_blocks) {
      ++host_references[static_cast<std::size_t>(block)];
    }
  }
  Check(num_in_flight == num_steps_in_flight_, "the count of steps in flight is wrong");
  for (BlockId block = 1; block < config_.num_blocks; ++block) {
    Check(cache_.device().reference_count(block) == references[static_cast<std::size_t>(block)],
          "I3: a reference count is not the number of chains and holds that name the block");
  }
  for (BlockId block = 1; block <= config_.num_host_blocks; ++block) {
    Check(cache_.host().reference_count(block) == host_references[static_cast<std::size_t>(block)],
          "I3: a host block's reference count is not the number of holds that name it");
  }
}

void EngineCore::CheckRequest(const Request& request) const {
  const BlockChain& chain = request.chain;
  Check(0 <= request.num_settled() && request.num_settled() <= request.num_computed &&
            (request.num_computed <= request.num_known() + request.num_pending ||
             request.state == RequestState::kDraining),
        "I21: token counts are out of order");
  Check(0 <= request.num_pending && request.num_pending <= config_.run_ahead + 1,
        "I21: a count of tokens to come is wrong");
  const std::int32_t num_blocks_computed = BlocksFor(request.num_computed, config_.block_tokens);
  // A token that is computed again has its block still.
  const std::int32_t num_blocks_to_come = BlocksFor(request.num_computed + 1, config_.block_tokens);
  Check(request.num_blocks() >= num_blocks_computed, "I21: computed tokens have no block");
  Check(request.state != RequestState::kDecode ||
            (request.num_remaining() == 1 && (request.num_blocks() == num_blocks_computed ||
                                              request.num_blocks() == num_blocks_to_come)),
        "I21: a request decodes that lacks more than one token, or has a block ahead");
  Check(request.num_blocks() <= request.blocks_to_completion,
        "I15: a request holds more than it can need");
  Check(chain.num_published * config_.block_tokens <= request.num_settled() ||
            request.state == RequestState::kOnload,
        "I7: a block is published before it is computed");
  Check((request.waiting() || request.state == RequestState::kHeld) == (request.slot == kNoSlot),
        "a request waits with a slot or runs without");
  Check(!request.held || request.state == RequestState::kHeld ||
            request.state == RequestState::kDraining || (request.running() && request.fenced()),
        "I13: a request that is held runs or waits on");
  Check((request.state == RequestState::kQueued || request.state == RequestState::kPaused) ==
            queue_.Contains(request),
        "the queue and a request's state differ");
  Check((std::ranges::find(running_, &request) != running_.end()) == request.running(),
        "the running list and a request's state differ");
  if (request.state == RequestState::kWaitLeader) {
    const Request* leader = requests_.Find(request.leader);
    Check(leader != nullptr && !leader->held &&
              std::ranges::count(leader->followers, request.handle) == 1,
          "I17: a request waits for a leader that will not wake it");
  }
  NodeId node = chain.tip;
  for (std::int32_t i = chain.num_published - 1; i >= 0; --i) {
    const auto width = static_cast<std::size_t>(config_.block_tokens);
    const auto tokens = std::span<const TokenId>(request.tokens)
                            .subspan(static_cast<std::size_t>(i) * width, width);
    Check(cache_.index().alive(node), "I6: a chain's node is gone");
    Check(cache_.index().block(node, Tier::kDevice) == chain.blocks[static_cast<std::size_t>(i)],
          "I8: a chain's published block is not its node's");
    Check(std::ranges::equal(cache_.index().tokens(node), tokens),
          "I7: a published block's tokens are not the request's");
    const ParentKey parent = cache_.index().parent(node);
    Check(parent.is_root() == (i == 0), "I6: a chain is not a path from the root");
    Check(!parent.is_root() || parent == ParentKey::Root(chain.scope),
          "I8: a chain is in another scope");
    node = parent.is_root() ? kNoNode : parent.node();
  }
}

}  // namespace antiphon
