#include "antiphon/capacity.h"

namespace antiphon {

const char* PolicyName(CapacityPolicy policy) {
  switch (policy) {
    case CapacityPolicy::kGuaranteedNoEvict:
      return "guaranteed_no_evict";
    case CapacityPolicy::kMaxUtilization:
      return "max_utilization";
    case CapacityPolicy::kStaticBatch:
      return "static_batch";
  }
  return "unknown";
}

bool Capacity::MayAdmit(const Load& load) const {
  if (load.num_running == 0) {
    return true;
  }
  switch (config_.policy) {
    case CapacityPolicy::kGuaranteedNoEvict:
      return true;
    case CapacityPolicy::kMaxUtilization:
      // Memory that a pause has freed is for those who run: an admission would take it away again.
      return last_pause_ < 0 || load.num_plans - last_pause_ > config_.cooldown_steps;
    case CapacityPolicy::kStaticBatch:
      return !load.any_decoding;
  }
  return true;
}

std::int32_t Capacity::Headroom(const Load& load, std::int32_t num_available) const {
  const std::int32_t unreserved = Unreserved(num_available);
  if (config_.policy != CapacityPolicy::kMaxUtilization || load.num_running == 0) {
    return unreserved;
  }
  const std::int32_t watermark = config_.watermark_blocks >= 0
                                     ? config_.watermark_blocks
                                     : config_.num_blocks / 100 + load.num_running;
  return unreserved - watermark;
}

void Capacity::Settle(std::int32_t count) {
  ANTIPHON_CHECK(count >= 0 && count <= reserved_);
  reserved_ -= count;
}

}  // namespace antiphon
