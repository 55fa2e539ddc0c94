// A reader that follows the cache's events, for tests.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <map>

#include "antiphon/kv_cache.h"

namespace antiphon {

class EventReader {
 public:
  // Reads on, or starts anew from a snapshot. Each event must be a change.
  void Follow(const KvCache& cache, bool is_new) {
    if (is_new) {
      Restart(cache.Snapshot());
    }
    const KvEventBatch batch = cache.events().Read(last_read_, /*limit=*/1 << 20);
    ASSERT_FALSE(batch.lost);
    for (const KvEvent& event : batch.events) {
      ASSERT_EQ(event.sequence, ++last_read_);
      const bool is_known = tiers_.contains(event.path_hash);
      ASSERT_EQ(is_known, event.kind != KvEventKind::kStored);
      ASSERT_EQ(event.tiers == 0, event.kind == KvEventKind::kRemoved);
      ASSERT_TRUE(!is_known || tiers_.at(event.path_hash) != event.tiers) << "nothing has changed";
      if (event.tiers == 0) {
        tiers_.erase(event.path_hash);
      } else {
        tiers_[event.path_hash] = event.tiers;
      }
    }
  }

  // Where each path lies, as far as this reader knows.
  const std::map<std::uint64_t, std::uint32_t>& tiers() const { return tiers_; }

 private:
  void Restart(const KvSnapshot& snapshot) {
    tiers_.clear();
    for (const KvEvent& block : snapshot.blocks) {
      tiers_[block.path_hash] = block.tiers;
    }
    last_read_ = snapshot.sequence;
  }

  std::map<std::uint64_t, std::uint32_t> tiers_;
  std::int64_t last_read_ = 0;
};

}  // namespace antiphon
