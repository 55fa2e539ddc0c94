#pragma once

#include <array>
#include <cstdint>

#include "antiphon/indexed_heap.h"
#include "antiphon/types.h"

namespace antiphon {

// Which node's block is the next to go, in each tier.
//
// Every node has a level (its retention's priority; kFirstToGo for what was demoted) and the time,
// counted in uses, when it was used last. Of a tier's candidates the one with the least (level,
// last use) comes first. Who is a candidate, the owner says.
//
// Expiry is watched for candidates alone: a node that becomes one later is judged by the clock
// then. So an operation on a node that is none costs nothing but writing its fields.
//
// Asking is O(1), moving a candidate O(log n). Not thread-safe.
class EvictionOrder {
 public:
  static constexpr std::int32_t kFirstToGo = -1;

  // So many retentions run out in one call of Advance; the rest in the next.
  static constexpr std::int32_t kMaxExpiries = 1024;

  struct Key {
    std::int32_t level = 0;
    std::uint64_t last_use = 0;
    bool operator==(const Key&) const = default;
    bool operator<(const Key& other) const {
      return level != other.level ? level < other.level : last_use < other.last_use;
    }
  };

  explicit EvictionOrder(std::int32_t num_nodes);

  // Sets the clock; retentions that run out by then fall to level 0. Time never goes back.
  void Advance(std::int64_t now_us);

  // Gives a node the level of a retention that begins now, unless it has a higher one, or the same
  // for longer.
  void Retain(NodeId node, const Retention& retention);

  // Gives a node another's level and expiry, on the same condition.
  void Inherit(NodeId node, NodeId from);

  void Demote(NodeId node);

  // Notes that a node was used.
  void Touch(NodeId node);

  void SetCandidate(NodeId node, Tier tier, bool is_candidate);

  // Forgets everything about a node.
  void Forget(NodeId node);

  // The tier's candidate that is the next to go, or kNoNode.
  NodeId first(Tier tier) const { return heap(tier).empty() ? kNoNode : heap(tier).top(); }

  // By the clock, so that it may be lower than a candidate's place says while more retentions run
  // out than one call of Advance takes.
  std::int32_t level(NodeId node) const;
  std::uint64_t last_use(NodeId node) const { return Get(node).last_use; }
  bool is_candidate(NodeId node, Tier tier) const { return heap(tier).Contains(node); }
  std::size_t num_candidates(Tier tier) const { return heap(tier).size(); }

  // Checks the heaps, O(n).
  void CheckInvariants() const;

 private:
  static constexpr std::int64_t kNever = 0;

  struct Entry {
    std::int32_t level = 0;
    std::int64_t expires_us = kNever;
    std::uint64_t last_use = 0;
  };

  const Entry& Get(NodeId node) const { return entries_[static_cast<std::size_t>(node)]; }
  Entry& Get(NodeId node) { return entries_[static_cast<std::size_t>(node)]; }
  const IndexedHeap<Key>& heap(Tier tier) const { return heaps_[static_cast<std::size_t>(tier)]; }
  void Raise(NodeId node, std::int32_t level, std::int64_t expires_us);
  void Place(NodeId node);

  std::vector<Entry> entries_;
  std::array<IndexedHeap<Key>, 2> heaps_;  // by tier
  IndexedHeap<std::int64_t> expiries_;     // candidates whose level will run out
  std::int64_t now_us_ = 0;
  std::uint64_t num_uses_ = 0;
};

}  // namespace antiphon
