#pragma once

#include <cstdint>
#include <vector>

#include "antiphon/types.h"

namespace antiphon {

enum class KvEventKind : std::uint8_t {
  kStored = 1,   // a block is there that was nowhere
  kRemoved = 2,  // its last copy is gone
  kMoved = 3,    // it lies elsewhere, or in one place more or less
};

// A change of where the KV cache of one whole block lies, or, in a snapshot, where it lies.
struct KvEvent {
  std::int64_t sequence = 0;  // from 1, without gaps
  KvEventKind kind = KvEventKind::kStored;
  std::uint64_t path_hash = 0;    // of the prefix that ends with the block: see prefix_index.h
  std::uint64_t parent_hash = 0;  // of the prefix before it
  ScopeId scope = 0;
  std::uint32_t tiers = 0;    // afterwards: bit 0 for the device, bit 1 for the host
  std::int32_t priority = 0;  // its retention's, below 0 if it is to go first
  bool operator==(const KvEvent&) const = default;
};

struct KvEventBatch {
  std::vector<KvEvent> events;  // in order
  bool lost = false;            // some that should come first are no longer kept: take a snapshot
};

// All blocks that are there, parents before children, and the event up to which this is true.
struct KvSnapshot {
  std::int64_t sequence = 0;
  std::vector<KvEvent> blocks;
};

// The latest changes, for readers that follow the cache. The oldest make room; a reader that comes
// too late is told.
//
// Not thread-safe.
class KvEvents {
 public:
  // `capacity` 0: nothing is recorded.
  explicit KvEvents(std::int32_t capacity);

  bool enabled() const { return !ring_.empty(); }

  // Gives the event its number. Does nothing where enabled() is false.
  void Append(KvEvent event);

  // Up to `limit` events after number `after`. `lost` also where `after` has not come yet, as it is
  // with a reader of another run.
  // REQUIRES: after >= 0, limit >= 0
  KvEventBatch Read(std::int64_t after, std::int32_t limit) const;

  std::int64_t last_sequence() const { return last_sequence_; }

 private:
  std::vector<KvEvent> ring_;  // number n is at n % capacity
  std::int64_t last_sequence_ = 0;
};

}  // namespace antiphon
