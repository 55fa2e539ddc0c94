#include "antiphon/eviction_order.h"

#include <algorithm>
#include <limits>

namespace antiphon {

EvictionOrder::EvictionOrder(std::int32_t num_nodes)
    : entries_(static_cast<std::size_t>(num_nodes)),
      heaps_{IndexedHeap<Key>(static_cast<std::size_t>(num_nodes)),
             IndexedHeap<Key>(static_cast<std::size_t>(num_nodes))},
      expiries_(static_cast<std::size_t>(num_nodes)) {}

void EvictionOrder::Advance(std::int64_t now_us) {
  now_us_ = std::max(now_us_, now_us);
  for (std::int32_t i = 0; i < kMaxExpiries && !expiries_.empty(); ++i) {
    if (expiries_.top_key() > now_us_) {
      return;
    }
    Place(expiries_.top());
  }
}

void EvictionOrder::Retain(NodeId node, const Retention& retention) {
  ANTIPHON_CHECK(retention.priority >= 0 && retention.priority <= Retention::kMaxPriority);
  ANTIPHON_CHECK(retention.duration_us >= 0);
  const bool forever = retention.duration_us == 0 ||
                       retention.duration_us > std::numeric_limits<std::int64_t>::max() - now_us_;
  Raise(node, retention.priority, forever ? kNever : now_us_ + retention.duration_us);
}

void EvictionOrder::Inherit(NodeId node, NodeId from) {
  Raise(node, level(from), Get(from).expires_us);
}

void EvictionOrder::Demote(NodeId node) {
  Get(node).level = kFirstToGo;
  Get(node).expires_us = kNever;
  Place(node);
}

void EvictionOrder::Touch(NodeId node) {
  Get(node).last_use = ++num_uses_;
  Place(node);
}

void EvictionOrder::SetCandidate(NodeId node, Tier tier, bool is_candidate) {
  IndexedHeap<Key>& candidates = heaps_[static_cast<std::size_t>(tier)];
  if (is_candidate == candidates.Contains(node)) {
    return;
  }
  if (is_candidate) {
    candidates.Set(node, Key{});
  } else {
    candidates.Remove(node);
  }
  Place(node);
}

void EvictionOrder::Forget(NodeId node) {
  for (IndexedHeap<Key>& candidates : heaps_) {
    candidates.Remove(node);
  }
  expiries_.Remove(node);
  Get(node) = Entry{};
}

std::int32_t EvictionOrder::level(NodeId node) const {
  const Entry& entry = Get(node);
  return entry.expires_us != kNever && entry.expires_us <= now_us_ ? 0 : entry.level;
}

void EvictionOrder::CheckInvariants() const {
  for (const Tier tier : {Tier::kDevice, Tier::kHost}) {
    for (const NodeId node : heap(tier).ids()) {
      Check(!(heap(tier).key(node) < heap(tier).top_key()),
            "I9: the first to go is not the least of a tier's candidates");
      const bool waits = expiries_.Contains(node) && Get(node).expires_us <= now_us_;
      const Key key = {.level = waits ? Get(node).level : level(node),
                       .last_use = Get(node).last_use};
      Check(heap(tier).key(node) == key, "I9: a candidate's key is out of date");
    }
  }
  for (const NodeId node : expiries_.ids()) {
    Check(is_candidate(node, Tier::kDevice) || is_candidate(node, Tier::kHost),
          "I9: the expiry of a node is watched that is no candidate");
    Check(expiries_.key(node) == Get(node).expires_us, "I9: a watched expiry is out of date");
  }
}

void EvictionOrder::Raise(NodeId node, std::int32_t level, std::int64_t expires_us) {
  Entry& entry = Get(node);
  const std::int32_t current = this->level(node);
  const bool is_longer =
      entry.expires_us != kNever && (expires_us == kNever || expires_us > entry.expires_us);
  if (level > current || (level == current && is_longer)) {
    entry.level = level;
    entry.expires_us = expires_us;
    Place(node);
  }
}

// Puts a candidate where its level and last use belong, and watches its expiry while that matters.
void EvictionOrder::Place(NodeId node) {
  Entry& entry = Get(node);
  entry.level = level(node);
  if (entry.level <= 0) {
    entry.expires_us = kNever;
  }
  bool is_any = false;
  for (IndexedHeap<Key>& candidates : heaps_) {
    if (candidates.Contains(node)) {
      candidates.Set(node, {.level = entry.level, .last_use = entry.last_use});
      is_any = true;
    }
  }
  if (is_any && entry.expires_us != kNever) {
    expiries_.Set(node, entry.expires_us);
  } else {
    expiries_.Remove(node);
  }
}

}  // namespace antiphon
