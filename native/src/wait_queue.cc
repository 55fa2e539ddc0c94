#include "antiphon/wait_queue.h"

namespace antiphon {

void WaitQueue::Add(const Request& request) {
  const bool added = order_.insert(KeyOf(request)).second;
  ANTIPHON_CHECK(added);
}

void WaitQueue::Remove(const Request& request) { order_.erase(KeyOf(request)); }

WaitQueue::Key WaitQueue::KeyOf(const Request& request) {
  return {.negated_priority = -static_cast<std::int64_t>(request.priority),
          .arrival = request.arrival,
          .handle = request.handle};
}

}  // namespace antiphon
