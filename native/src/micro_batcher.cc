#include "antiphon/micro_batcher.h"

#include <algorithm>

namespace antiphon {

const char* PolicyName(ChunkPolicy policy) {
  return policy == ChunkPolicy::kEqualProgress ? "equal_progress" : "first_come_first_served";
}

MicroBatcher::MicroBatcher(const BatchLimits& limits)
    : limits_(limits),
      chunk_limit_(limits.chunk_tokens == 0 ? limits.max_step_tokens : limits.chunk_tokens),
      max_running_(std::min(limits.max_rows, limits.max_step_tokens - limits.block_tokens + 1)) {
  ANTIPHON_CHECK(limits.block_tokens >= 1 && limits.max_step_tokens >= limits.block_tokens);
  ANTIPHON_CHECK(limits.max_rows >= 1 && chunk_limit_ >= limits.block_tokens);
}

void MicroBatcher::Begin(std::int32_t max_table_deltas) {
  rows_left_ = limits_.max_rows;
  tokens_left_ = limits_.max_step_tokens;
  table_deltas_left_ = max_table_deltas;
}

std::int32_t MicroBatcher::ChunkFor(std::int32_t start, std::int32_t remaining) const {
  const std::int32_t limit = std::min(tokens_left_, chunk_limit_);
  if (remaining <= limit) {
    return remaining;
  }
  const std::int32_t end = (start + limit) / limits_.block_tokens * limits_.block_tokens;
  return std::max(end - start, 0);
}

void MicroBatcher::ShareEqually(std::span<Chunk> chunks) const {
  std::int32_t left = tokens_left_;
  for (Chunk& chunk : chunks) {
    chunk.q_len = 0;
  }
  for (bool has_given = true; has_given;) {
    has_given = false;
    for (Chunk& chunk : chunks) {
      const std::int32_t end = chunk.start + chunk.q_len;
      const std::int32_t edge = (end / limits_.block_tokens + 1) * limits_.block_tokens;
      const std::int32_t next = std::min(edge, chunk.start + chunk.remaining);
      if (next > end && next - end <= left && next - chunk.start <= chunk_limit_) {
        left -= next - end;
        chunk.q_len = next - chunk.start;
        has_given = true;
      }
    }
  }
  if (!chunks.empty() && chunks.front().q_len == 0) {
    Chunk& first = chunks.front();
    first.q_len = std::min(ChunkFor(first.start, first.remaining), left);
  }
}

}  // namespace antiphon
