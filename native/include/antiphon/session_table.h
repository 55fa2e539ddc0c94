#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <unordered_map>

#include "antiphon/kv_cache.h"
#include "antiphon/types.h"

namespace antiphon {

// Where each session's conversation ends in the tree: hints for eviction, never pins. A session
// has no memory of its own; a tip whose node was evicted says nothing.
//
// Invariants:
//  1. A node's marks are the sessions whose tip it is.
//  2. At most `max_sessions` are known; the one used longest ago is forgotten for a new one.
//
// Not thread-safe. Operations are O(1), and O(path) where they move or drop a tip.
class SessionTable {
 public:
  // `cache` outlives the table. REQUIRES: max_sessions >= 1
  SessionTable(std::size_t max_sessions, KvCache* cache)
      : max_sessions_(max_sessions), cache_(cache) {}

  // Makes `node` the tip; what led to the tip before and nothing else needs is demoted.
  void SetTip(std::uint64_t session, NodeId node);

  // Moves the tip back to its first `num_tokens` tokens. Returns false if there is no tip.
  bool Rewind(std::uint64_t session, std::int64_t num_tokens);

  // Gives a session the tip of another. Returns false if that has none.
  bool Fork(std::uint64_t session, std::uint64_t new_session);

  // Forgets a session and demotes what only it needed. Returns false if it has no tip.
  bool Close(std::uint64_t session);

  std::size_t num_sessions() const { return tips_.size(); }

  // The node of a session's tip, or kNoNode if it has none any more.
  NodeId tip(std::uint64_t session) const;

 private:
  struct Tip {
    NodeId node = kNoNode;
    std::uint64_t uid = 0;  // tells a later node of the same id
    std::list<std::uint64_t>::iterator age;
  };

  bool IsAlive(const Tip& tip) const;
  void Drop(const Tip& tip);
  void ForgetOldest();

  std::size_t max_sessions_;
  KvCache* cache_;
  std::unordered_map<std::uint64_t, Tip> tips_;
  std::list<std::uint64_t> ages_;  // used longest ago first
};

}  // namespace antiphon
