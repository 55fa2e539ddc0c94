#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "antiphon/kernels/activations.h"
#include "antiphon/kernels/cpu_features.h"
#include "antiphon/kernels/thread_team.h"

namespace antiphon::kernels {

// A step's rows. R: rows, S: slots, M: blocks of the longest context. Each row's tokens follow what
// the cache has of it, and their keys and values are stored already.
struct AttentionStep {
  std::int64_t num_rows;        // R
  const std::int32_t* q_len;    // [R], from 1
  const std::int32_t* cu_q;     // [R]: a row's first token among the step's
  const std::int32_t* ctx_len;  // [R]: tokens before those
  const std::int32_t* slots;    // [R]: each row's line of the table
  const std::int32_t*
      block_table;            // [S, M]: blocks in order; what is behind a row's end isn't read
  std::int64_t table_stride;  // M
};

// One layer. N: query heads, K: key-value heads, which divide them, D: head dimension.
struct AttentionLayer {
  int num_heads;       // N
  int num_kv_heads;    // K
  int head_dim;        // D
  int block_tokens;    // of a block
  float scale;         // of scores; usually 1 / sqrt(D)
  int sliding_window;  // tokens that a token sees, itself included; 0: all before it
  const void* k_pool;  // [blocks, block_tokens, K, D]
  const void* v_pool;
  Type kv_type;
};

// Where parts of long contexts wait for each other. One op at a time uses it.
class AttentionWorkspace {
 public:
  // For a team of `num_threads`. Contexts whose parts need more than `num_bytes` aren't shared out
  // among workers; results are the same.
  explicit AttentionWorkspace(int num_threads, std::size_t num_bytes = std::size_t{16} << 20U);
  ~AttentionWorkspace();
  AttentionWorkspace(const AttentionWorkspace&) = delete;
  AttentionWorkspace& operator=(const AttentionWorkspace&) = delete;

  // Forgets what a region that failed has left. Between regions only.
  void reset();

  std::int64_t max_units() const { return max_units_; }
  std::int64_t num_floats() const { return num_floats_; }
  float* parts() { return parts_; }
  // Parts of a unit that are complete. 0 between ops.
  std::atomic<std::int32_t>& num_complete(std::int64_t unit) { return num_complete_[unit]; }

 private:
  std::int64_t max_units_;
  std::int64_t num_floats_;
  std::unique_ptr<std::atomic<std::int32_t>[]> num_complete_;
  float* parts_;
};

// Causal attention over the paged cache: `out`, [T, N * D], of `q`, [T, N * D], for rows of one
// token and of many. Any mix of types goes with any `isa`. Called by every worker of a region, with
// a cursor as in `rms_norm`.
//
// A token's result depends on its query and on the keys and values that it sees, and on nothing
// else: neither on other rows, nor on where a prompt was cut, nor on the number of threads, bit for
// bit on one `isa`. Keys are taken in blocks and splits that are counted from position 0.
void attention(Worker& worker, TaskCursor& cursor, AttentionWorkspace& workspace,
               const AttentionStep& step, const AttentionLayer& layer, const Rows& q,
               const RowsOut& out, Isa isa = best_isa());

}  // namespace antiphon::kernels
