// Making room. What is evicted is a leaf of what is on the device, by the order of its level and
// last use; it moves to the host or is dropped with all that hangs below it there.
#include <algorithm>

#include "antiphon/kv_cache.h"

namespace antiphon {

void KvCache::Demote(NodeId node) {
  if (IsNeeded(node) || ChildrenAreNeeded(node)) {
    return;
  }
  for (NodeId child = index_.first_child(ParentKey::Node(node)); child != kNoNode;
       child = index_.next_sibling(child)) {
    order_.Demote(child);
  }
  order_.Demote(node);
  for (ParentKey parent = index_.parent(node); !parent.is_root();
       parent = index_.parent(parent.node())) {
    if (index_.num_children(parent.node()) > 1 || IsNeeded(parent.node())) {
      return;
    }
    order_.Demote(parent.node());
  }
}

std::int32_t KvCache::Flush() {
  std::int32_t count = 0;
  for (; device_.num_cached() > 0; ++count) {
    RemoveSubtree(FirstToEvict());
  }
  for (BlockId block = 1; block < host_.num_blocks(); ++block) {
    const NodeId node = host_.node(block);
    if (node == kNoNode || host_.reference_count(block) > 0) {
      continue;
    }
    if (index_.is_on(node, Tier::kDevice)) {
      DropHostCopy(node);
    } else {
      RemoveSubtree(node);
    }
  }
  return count;
}

KvSnapshot KvCache::Snapshot() const {
  std::vector<NodeId> nodes;
  for (NodeId node = 0; node < index_.max_nodes(); ++node) {
    if (index_.alive(node) && index_.is_whole(node)) {
      nodes.push_back(node);
    }
  }
  // A node comes into being after its parent.
  std::ranges::sort(nodes, {}, [this](NodeId node) { return index_.uid(node); });
  KvSnapshot snapshot = {.sequence = events_.last_sequence(), .blocks = {}};
  snapshot.blocks.reserve(nodes.size());
  for (const NodeId node : nodes) {
    snapshot.blocks.push_back(EventOf(KvEventKind::kStored, node));
    snapshot.blocks.back().sequence = snapshot.sequence;
  }
  return snapshot;
}

// Takes an empty device block, evicting where there is none. An offload leaves so many of the
// step's copies to the caller.
BlockId KvCache::TakeBlock(std::int32_t num_reserved_copies) {
  if (device_.num_clean() == 0) {
    Evict(num_reserved_copies);
  }
  return device_.TakeClean();
}

void KvCache::Evict(std::int32_t num_reserved_copies) {
  const NodeId node = FirstToEvict();
  if (index_.is_on(node, Tier::kHost) || Offload(node, num_reserved_copies)) {
    TakeOffDevice(node);
  } else {
    RemoveSubtree(node);
  }
  ++num_evictions_;
}

NodeId KvCache::FirstToEvict() {
  if (order_.first(Tier::kDevice) == kNoNode) {
    UntieHeldBlocks();
  }
  const NodeId node = order_.first(Tier::kDevice);
  ANTIPHON_CHECK(node != kNoNode);
  return node;
}

// Starts to copy a node to the host, if it is worth it and there is room. The node is not taken off
// the device here.
bool KvCache::Offload(NodeId node, std::int32_t num_reserved_copies) {
  const std::int32_t level = order_.level(node);
  if (config_.num_host_blocks == 0 || num_copies_left() <= num_reserved_copies ||
      level < config_.offload_min_priority || index_.num_hits(node) < config_.offload_min_hits) {
    return false;
  }
  const BlockId block = TakeHostBlock(level);
  if (block == kNoBlock) {
    return false;
  }
  host_.Tie(block, node);
  index_.SetBlock(node, Tier::kHost, block);
  is_host_written_[Index(block)] = true;
  holds_.host_blocks.push_back(block);
  holds_.offloaded.push_back(block);
  copies_.push_back({.kind = CopyKind::kOffload,
                     .source_tier = Tier::kDevice,
                     .source = index_.block(node, Tier::kDevice),
                     .destination = block,
                     .num_tokens = static_cast<std::int32_t>(index_.tokens(node).size())});
  ++num_offloads_;
  return true;
}

// Takes an empty host block, with one reference, for a node of this level; none of a higher level
// makes room for it. Returns kNoBlock if there is none.
BlockId KvCache::TakeHostBlock(std::int32_t level) {
  if (config_.fail_host_allocation_every > 0 &&
      ++num_host_allocations_ % config_.fail_host_allocation_every == 0) {
    return kNoBlock;
  }
  if (host_.num_clean() == 0) {
    const NodeId node = order_.first(Tier::kHost);
    if (node == kNoNode || order_.level(node) > level) {
      return kNoBlock;
    }
    if (index_.is_on(node, Tier::kDevice)) {
      DropHostCopy(node);
    } else {
      RemoveNode(node);
    }
  }
  return host_.TakeClean();
}

// REQUIRES: the node is on the host too, and no child of it is on the device
void KvCache::TakeOffDevice(NodeId node) {
  const BlockId block = index_.block(node, Tier::kDevice);
  index_.SetBlock(node, Tier::kDevice, kNoBlock);
  device_.Untie(block);
  RefreshCandidate(node);
  RefreshParent(index_.parent(node));
  Record(KvEventKind::kMoved, node);
}

// REQUIRES: the node is on the device too
void KvCache::DropHostCopy(NodeId node) {
  const BlockId block = index_.block(node, Tier::kHost);
  index_.SetBlock(node, Tier::kHost, kNoBlock);
  host_.Untie(block);
  RefreshCandidate(node);
  Record(KvEventKind::kMoved, node);
}

// Forgets a node without children. Blocks that are referenced stay with those who refer to them.
void KvCache::RemoveNode(NodeId node) {
  if (const BlockId block = index_.block(node, Tier::kDevice); block != kNoBlock) {
    device_.Untie(block);
    index_.SetBlock(node, Tier::kDevice, kNoBlock);
  }
  if (const BlockId block = index_.block(node, Tier::kHost); block != kNoBlock) {
    host_.Untie(block);
    index_.SetBlock(node, Tier::kHost, kNoBlock);
  }
  Record(KvEventKind::kRemoved, node);
  const ParentKey parent = index_.parent(node);
  const ScopeId scope = index_.scope(node);
  order_.Forget(node);
  index_.Remove(node);
  scopes_->DropUse(scope);
  RefreshParent(parent);
}

// Forgets a node and all below it, from the bottom up.
// REQUIRES: none below it is on the device
void KvCache::RemoveSubtree(NodeId node) {
  NodeId current = node;
  while (true) {
    const NodeId child = index_.first_child(ParentKey::Node(current));
    if (child != kNoNode) {
      current = child;
      continue;
    }
    const ParentKey parent = index_.parent(current);
    const bool is_top = current == node;
    RemoveNode(current);
    if (is_top) {
      return;
    }
    current = parent.node();
  }
}

// Where no cached block is a leaf, nodes hang below them that are held for copies alone: their
// chains have let go already. Takes these nodes off the device, until a cached block is a leaf; the
// copies keep the blocks themselves.
void KvCache::UntieHeldBlocks() {
  for (BlockId block = 1; block < device_.num_blocks(); ++block) {
    NodeId node = device_.node(block);
    while (node != kNoNode && IsHeldByStepsAlone(node) && index_.num_device_children(node) == 0) {
      const ParentKey parent = index_.parent(node);
      if (index_.is_on(node, Tier::kHost)) {
        TakeOffDevice(node);
      } else {
        RemoveSubtree(node);
      }
      node = parent.is_root() ? kNoNode : parent.node();
    }
    if (order_.first(Tier::kDevice) != kNoNode) {
      return;
    }
  }
}

bool KvCache::IsHeldByStepsAlone(NodeId node) const {
  const BlockId block = index_.block(node, Tier::kDevice);
  return num_device_holds_[Index(block)] > 0 &&
         num_device_holds_[Index(block)] == device_.reference_count(block);
}

// Whether a request or a session needs the node, other than for what is below it.
bool KvCache::IsNeeded(NodeId node) const {
  const BlockId block = index_.block(node, Tier::kDevice);
  return index_.num_marks(node) > 0 || (block != kNoBlock && device_.reference_count(block) > 0);
}

// Whether something needs one of a node's children; whole ones and very many count as needed.
bool KvCache::ChildrenAreNeeded(NodeId node) const {
  const ParentKey parent = ParentKey::Node(node);
  const std::int32_t num_partial = index_.num_partial_children(parent);
  if (index_.num_children(node) > num_partial || num_partial > kMaxScannedChildren) {
    return true;
  }
  for (NodeId child = index_.first_child(parent); child != kNoNode;
       child = index_.next_sibling(child)) {
    if (IsNeeded(child)) {
      return true;
    }
  }
  return false;
}

// Says in which tiers the node's block may be the next to go.
void KvCache::RefreshCandidate(NodeId node) {
  const BlockId on_device = index_.block(node, Tier::kDevice);
  const BlockId on_host = index_.block(node, Tier::kHost);
  order_.SetCandidate(node, Tier::kDevice,
                      on_device != kNoBlock && device_.reference_count(on_device) == 0 &&
                          index_.num_device_children(node) == 0);
  order_.SetCandidate(node, Tier::kHost,
                      on_host != kNoBlock && host_.reference_count(on_host) == 0 &&
                          (on_device != kNoBlock || index_.num_children(node) == 0));
}

void KvCache::RefreshParent(ParentKey parent) {
  if (!parent.is_root()) {
    RefreshCandidate(parent.node());
  }
}

void KvCache::Record(KvEventKind kind, NodeId node) {
  if (events_.enabled() && index_.is_whole(node)) {
    events_.Append(EventOf(kind, node));
  }
}

KvEvent KvCache::EventOf(KvEventKind kind, NodeId node) const {
  const std::uint32_t tiers =
      (index_.is_on(node, Tier::kDevice) ? 1U : 0U) | (index_.is_on(node, Tier::kHost) ? 2U : 0U);
  return {.sequence = 0,
          .kind = kind,
          .path_hash = index_.path_hash(node),
          .parent_hash = index_.parent_hash(node),
          .scope = index_.scope(node),
          .tiers = tiers,
          .priority = order_.level(node)};
}

}  // namespace antiphon
