#pragma once

#include <cstdint>
#include <list>
#include <string>
#include <unordered_map>

#include "antiphon/types.h"

namespace antiphon {

// What must be equal for two requests to share KV cache.
struct ScopeFields {
  std::string tenant;
  std::string cache_scope;
  std::string adapter;
  std::string weights;
};

// The path hash of a scope's root, the same in every process. Over the bytes of tenant, cache
// scope, adapter and weights, in this order, each as its length in bytes in decimal, a colon and
// its UTF-8 text: FNV-1a of 64 bits (from 0xcbf29ce484222325; xor the byte, times 0x100000001b3),
// then Mix64 of random.h.
std::uint64_t HashScope(const ScopeFields& fields);

// Gives each distinct set of fields an id. Fields are told apart by place, so that equal words in
// different fields are different scopes.
//
// Invariants:
//  1. An id means the same fields for ever; ids are never used twice.
//  2. A scope in use is never forgotten; of those not in use, the kMaxIdleScopes latest are kept.
//
// Not thread-safe.
class ScopeTable {
 public:
  static constexpr std::size_t kMaxIdleScopes = 1024;

  // O(length of the fields).
  ScopeId Intern(const ScopeFields& fields);

  bool Contains(ScopeId scope) const { return entries_.contains(scope); }

  // Counts the requests and nodes that stand on a scope.
  // REQUIRES: Contains(scope)
  void AddUse(ScopeId scope);
  void DropUse(ScopeId scope);

  // HashScope of its fields.
  // REQUIRES: Contains(scope)
  std::uint64_t hash(ScopeId scope) const { return entries_.at(scope).hash; }

  std::size_t num_scopes() const { return entries_.size(); }
  std::int64_t num_uses(ScopeId scope) const;

 private:
  struct Entry {
    std::string key;
    std::uint64_t hash = 0;
    std::int64_t num_uses = 0;
    std::list<ScopeId>::iterator idle;  // place in idle_; only where num_uses is 0
  };

  void MakeIdle(ScopeId scope, Entry& entry);

  std::unordered_map<std::string, ScopeId> ids_;
  std::unordered_map<ScopeId, Entry> entries_;
  std::list<ScopeId> idle_;  // oldest first
  ScopeId next_id_ = 1;
};

}  // namespace antiphon
