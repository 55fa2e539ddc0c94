#include "antiphon/kv_events.h"

#include <algorithm>

namespace antiphon {

KvEvents::KvEvents(std::int32_t capacity) {
  ANTIPHON_CHECK(capacity >= 0);
  ring_.resize(static_cast<std::size_t>(capacity));
}

void KvEvents::Append(KvEvent event) {
  if (!enabled()) {
    return;
  }
  event.sequence = ++last_sequence_;
  ring_[static_cast<std::size_t>(event.sequence) % ring_.size()] = event;
}

KvEventBatch KvEvents::Read(std::int64_t after, std::int32_t limit) const {
  ANTIPHON_CHECK(after >= 0 && limit >= 0);
  const auto capacity = static_cast<std::int64_t>(ring_.size());
  const std::int64_t first = std::max<std::int64_t>(1, last_sequence_ - capacity + 1);
  KvEventBatch batch;
  batch.lost = after > last_sequence_ || after + 1 < first;
  const std::int64_t start = after > last_sequence_ ? first : std::max(after + 1, first);
  const std::int64_t end = std::min(last_sequence_ + 1, start + limit);
  for (std::int64_t sequence = start; sequence < end; ++sequence) {
    batch.events.push_back(ring_[static_cast<std::size_t>(sequence) % ring_.size()]);
  }
  return batch;
}

}  // namespace antiphon
