// Checks over pools, index and order as one. Each is named after the invariant that it checks.
#include <algorithm>
#include <set>

#include "antiphon/kv_cache.h"

namespace antiphon {

void KvCache::CheckInvariants() const {
  device_.CheckInvariants();
  host_.CheckInvariants();
  index_.CheckInvariants();
  order_.CheckInvariants();
  CheckTies();
  CheckHolds();
  CheckCopies();
  std::array<std::size_t, 2> num_candidates = {};
  for (NodeId node = 0; node < index_.max_nodes(); ++node) {
    if (!index_.alive(node)) {
      continue;
    }
    CheckNode(node);
    for (const Tier tier : {Tier::kDevice, Tier::kHost}) {
      num_candidates[static_cast<std::size_t>(tier)] += order_.is_candidate(node, tier) ? 1 : 0;
    }
  }
  Check(num_candidates[0] == order_.num_candidates(Tier::kDevice) &&
            num_candidates[1] == order_.num_candidates(Tier::kHost),
        "I9: a node that is gone may be evicted");
}

void KvCache::CheckNode(NodeId node) const {
  const BlockId on_device = index_.block(node, Tier::kDevice);
  const BlockId on_host = index_.block(node, Tier::kHost);
  Check(on_device != kNoBlock || on_host != kNoBlock, "I6: a node lies nowhere");
  Check(on_device == kNoBlock || device_.node(on_device) == node,
        "I6: a device block and its node do not name each other");
  Check(on_host == kNoBlock || host_.node(on_host) == node,
        "I6: a host block and its node do not name each other");
  Check(scopes_->Contains(index_.scope(node)), "I8: a node's scope is forgotten");
  const bool is_leaf = index_.num_device_children(node) == 0;
  Check(order_.is_candidate(node, Tier::kDevice) ==
            (on_device != kNoBlock && device_.reference_count(on_device) == 0 && is_leaf),
        "I9: the device's candidates are not its unreferenced leaves");
  Check(order_.is_candidate(node, Tier::kHost) ==
            (on_host != kNoBlock && host_.reference_count(on_host) == 0 &&
             (on_device != kNoBlock || index_.num_children(node) == 0)),
        "I9: the host's candidates are not the blocks that can be dropped alone");
  const ParentKey parent = index_.parent(node);
  const bool has_chain = on_device != kNoBlock &&
                         device_.reference_count(on_device) > num_device_holds_[Index(on_device)];
  if (has_chain && !parent.is_root()) {
    const BlockId above = index_.block(parent.node(), Tier::kDevice);
    Check(above != kNoBlock && device_.reference_count(above) > num_device_holds_[Index(above)],
          "I6: a referenced node's parent is not referenced");
  }
}

void KvCache::CheckTies() const {
  for (BlockId block = 1; block < device_.num_blocks(); ++block) {
    const NodeId node = device_.node(block);
    Check(node == kNoNode || (index_.alive(node) && index_.block(node, Tier::kDevice) == block),
          "I6: a device block names a node that lies elsewhere");
  }
  for (BlockId block = 1; block < host_.num_blocks(); ++block) {
    const NodeId node = host_.node(block);
    Check(node == kNoNode || (index_.alive(node) && index_.block(node, Tier::kHost) == block),
          "I6: a host block names a node that lies elsewhere");
  }
}

void KvCache::CheckHolds() const {
  for (BlockId block = 1; block < device_.num_blocks(); ++block) {
    const std::int32_t num_holds = num_device_holds_[Index(block)];
    Check(num_holds >= 0 && num_holds <= device_.reference_count(block),
          "I3: a block is held more often than it is referenced");
  }
  for (BlockId block = 1; block < host_.num_blocks(); ++block) {
    Check(!is_host_written_[Index(block)] || host_.reference_count(block) > 0,
          "I11: a host block that is being written is not held");
  }
}

// Copies that have not been taken yet.
void KvCache::CheckCopies() const {
  if (holds_.empty()) {
    return;
  }
  Check(num_copies_left() >= 0, "I13: a step has more copies than it may");
  std::set<std::pair<bool, BlockId>> destinations;
  for (const CopyOp& copy : copies_) {
    const bool is_offload = copy.kind == CopyKind::kOffload;
    Check(destinations.emplace(is_offload, copy.destination).second,
          "I11: two copies of a step write the same block");
    Check(copy.num_tokens >= 1 && copy.num_tokens <= config_.block_tokens,
          "I11: a copy is empty, or more than a block");
    Check(is_offload ? host_.reference_count(copy.destination) > 0
                     : num_device_holds_[Index(copy.destination)] > 0,
          "I11: a copy's destination is not held");
    const bool is_held = copy.source_tier == Tier::kHost
                             ? host_.reference_count(copy.source) > 0
                             : num_device_holds_[Index(copy.source)] > 0;
    Check(is_offload || is_held, "I11: a copy's source is not held");
  }
  for (const CopyOp& copy : copies_) {
    Check(copy.kind == CopyKind::kOffload ||
              !destinations.contains({copy.source_tier == Tier::kHost, copy.source}),
          "I11: a copy reads what another of the step writes");
  }
}

}  // namespace antiphon
