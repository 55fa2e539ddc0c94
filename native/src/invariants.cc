// Checks over the whole state. Each is named after the invariant that it checks: I1 to I8 of blocks
// and index, I9 of the age list, I15 of the reservations, I21 of the token counts.
#include <algorithm>

#include "antiphon/engine_core.h"

namespace antiphon {

void EngineCore::CheckInvariants() const {
  cache_.CheckInvariants();
  requests_.CheckInvariants();
  std::vector<std::int32_t> references(static_cast<std::size_t>(config_.num_blocks), 0);
  std::vector<bool> slots(static_cast<std::size_t>(config_.max_rows), false);
  std::int64_t num_waiting = 0;
  std::int32_t reserved = 0;
  for (const Request& request : requests_.places()) {
    if (request.state == RequestState::kFree) {
      continue;
    }
    CheckRequest(request);
    num_waiting += request.waiting() ? 1 : 0;
    for (const BlockId block : request.chain.blocks) {
      ++references[static_cast<std::size_t>(block)];
    }
    if (request.slot != kNoSlot) {
      Check(!slots[static_cast<std::size_t>(request.slot)], "a slot has two owners");
      slots[static_cast<std::size_t>(request.slot)] = true;
      reserved +=
          request.num_blocks_needed - static_cast<std::int32_t>(request.chain.blocks.size());
    }
  }
  for (BlockId block = 1; block < config_.num_blocks; ++block) {
    Check(cache_.pool().reference_count(block) == references[static_cast<std::size_t>(block)],
          "I3: a reference count is not the number of chains that name the block");
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
}

void EngineCore::CheckRequest(const Request& request) const {
  const BlockChain& chain = request.chain;
  Check(0 <= request.num_settled() && request.num_settled() <= request.num_computed &&
            request.num_computed <= request.num_known(),
        "I21: token counts are out of order");
  Check(static_cast<std::int32_t>(chain.blocks.size()) >=
            BlocksFor(request.num_computed, config_.block_tokens),
        "I21: computed tokens have no block");
  Check(static_cast<std::int32_t>(chain.blocks.size()) <= request.num_blocks_needed,
        "I15: a request holds more than it was admitted for");
  Check(chain.num_published * config_.block_tokens <= request.num_settled(),
        "I7: a block is published before it is computed");
  Check(request.waiting() == (request.slot == kNoSlot),
        "a request waits with a slot or runs without");
  Check((request.state == RequestState::kQueued) == queue_.Contains(request),
        "the queue and a request's state differ");
  Check((std::ranges::find(running_, request.handle) != running_.end()) == request.running(),
        "the running list and a request's state differ");
  if (request.state == RequestState::kWaitLeader) {
    const Request* leader = requests_.Find(request.leader);
    Check(leader != nullptr && std::ranges::count(leader->followers, request.handle) == 1,
          "I17: a request waits for a leader that will not wake it");
  }
  NodeId node = chain.tip;
  for (std::int32_t i = chain.num_published - 1; i >= 0; --i) {
    const auto width = static_cast<std::size_t>(config_.block_tokens);
    const auto tokens = std::span<const TokenId>(request.tokens)
                            .subspan(static_cast<std::size_t>(i) * width, width);
    Check(cache_.index().alive(node), "I6: a chain's node is gone");
    Check(cache_.index().block(node) == chain.blocks[static_cast<std::size_t>(i)],
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
