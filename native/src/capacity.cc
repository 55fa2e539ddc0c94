#include "antiphon/capacity.h"

namespace antiphon {

void NoEvictCapacity::Settle(std::int32_t count) {
  ANTIPHON_CHECK(count >= 0 && count <= reserved_);
  reserved_ -= count;
}

}  // namespace antiphon
