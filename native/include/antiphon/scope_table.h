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

  std::size_t num_scopes() const { return entries_.size(); }
  std::int64_t num_uses(ScopeId scope) const;

 private:
  struct Entry {
    std::string key;
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
