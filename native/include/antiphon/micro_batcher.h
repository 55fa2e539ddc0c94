#pragma once

#include <cstdint>
#include <span>

#include "antiphon/types.h"

namespace antiphon {

// How prompts share the tokens of a step.
enum class ChunkPolicy : std::uint8_t {
  kFirstComeFirstServed,  // in the order of their right to run, each as much as is left
  kEqualProgress,         // a block each in turn, until nothing is left
};

const char* PolicyName(ChunkPolicy policy);

struct BatchLimits {
  std::int32_t block_tokens = 0;
  std::int32_t max_rows = 0;
  std::int32_t max_step_tokens = 0;
  std::int32_t chunk_tokens = 0;  // 0: only max_step_tokens bounds a chunk
};

// A prompt's part of a step.
struct Chunk {
  std::int32_t start = 0;      // position of the first token
  std::int32_t remaining = 0;  // tokens from there to the prompt's end, at least 1
  std::int32_t q_len = 0;      // what it gets
};

// Packs one step: how many tokens each request computes under the step's limits. Rows are offered
// in the order of their right to run.
//
// Invariants:
//  1. Rows, tokens and table deltas taken never exceed their limits.
//  2. A chunk that is not a prompt's last ends on a block edge, counted from position 0.
//
// Not thread-safe.
class MicroBatcher {
 public:
  // REQUIRES: limits.max_step_tokens >= limits.block_tokens >= 1; limits.chunk_tokens is 0 or no
  // less than a block
  explicit MicroBatcher(const BatchLimits& limits);

  // Starts an empty step.
  void Begin(std::int32_t max_table_deltas);

  // Tokens that a prompt may compute now, from `start`, of which `remaining` are left; 0: none.
  // REQUIRES: remaining >= 1
  std::int32_t ChunkFor(std::int32_t start, std::int32_t remaining) const;

  // Shares the tokens that are left among prompts: a block each in turn, up to block edges, until
  // nothing fits; where not even one is left, the first gets what there is. Takes nothing.
  // O(chunks + blocks).
  void ShareEqually(std::span<Chunk> chunks) const;

  // Whether `num_prompts` can get a block each of what is left, or the only one something.
  bool HasBlocksFor(std::int32_t num_prompts) const {
    return num_prompts == 1 ? tokens_left_ > 0 : num_prompts * limits_.block_tokens <= tokens_left_;
  }

  // Whether a row fits.
  bool Fits(std::int32_t num_tokens, std::int32_t num_table_deltas) const {
    return rows_left_ > 0 && num_tokens <= tokens_left_ && num_table_deltas <= table_deltas_left_;
  }

  // Takes a row if it fits, and returns whether it did.
  bool Take(std::int32_t num_tokens, std::int32_t num_table_deltas) {
    if (!Fits(num_tokens, num_table_deltas)) {
      return false;
    }
    --rows_left_;
    tokens_left_ -= num_tokens;
    table_deltas_left_ -= num_table_deltas;
    return true;
  }

  // Requests that may run at once: no more than leave a whole block of the budget to a prompt when
  // all others decode, so that decoding never keeps a prompt from progress.
  std::int32_t max_running() const { return max_running_; }

  std::int32_t tokens_left() const { return tokens_left_; }
  std::int32_t rows_left() const { return rows_left_; }

 private:
  BatchLimits limits_;
  std::int32_t chunk_limit_;
  std::int32_t max_running_;
  std::int32_t rows_left_ = 0;
  std::int32_t tokens_left_ = 0;
  std::int32_t table_deltas_left_ = 0;
};

}  // namespace antiphon
