#pragma once

#include <cstdint>
#include <set>

#include "antiphon/request_table.h"
#include "antiphon/types.h"

namespace antiphon {

// Requests that wait to be admitted, highest priority first and within it by arrival. A request
// that comes back keeps the place that its arrival gives it.
//
// Invariants:
//  1. The order is total and does not depend on when a request was added.
//
// Not thread-safe. All operations are O(log n); looking at the head is O(1).
class WaitQueue {
 public:
  struct Key {
    std::int64_t negated_priority;
    std::uint64_t arrival;
    Handle handle;
    auto operator<=>(const Key&) const = default;
  };
  // In order; removing a request leaves the iterators of others good.
  using Iterator = std::set<Key>::const_iterator;

  void Add(const Request& request);

  // Removes it if it is there.
  void Remove(const Request& request);

  bool empty() const { return order_.empty(); }
  std::size_t size() const { return order_.size(); }

  Iterator begin() const { return order_.begin(); }
  Iterator end() const { return order_.end(); }

  bool Contains(const Request& request) const { return order_.contains(KeyOf(request)); }

 private:
  static Key KeyOf(const Request& request);

  std::set<Key> order_;
};

}  // namespace antiphon
