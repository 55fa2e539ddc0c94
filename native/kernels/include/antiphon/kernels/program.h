// A model as a list of operations over buffers that were allocated once.
//
// Whoever knows the model describes it when it is loaded: buffers, then operations in their order.
// A run carries the list out for the tokens of one step, in one region of the thread team: nothing
// is allocated, and operations are parted by a barrier only where one needs what another wrote.
//
// Used by one thread at a time, as its team is. A program keeps the weights alive that it is given.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "antiphon/kernels/activations.h"
#include "antiphon/kernels/cpu_features.h"
#include "antiphon/kernels/linear.h"
#include "antiphon/kernels/packed_matrix.h"
#include "antiphon/kernels/thread_team.h"

namespace antiphon::kernels {

using BufferId = std::int32_t;

// Where a layer's keys and values lie: [num_blocks, block_tokens, num_kv_heads, head_dim] each.
struct KvPools {
  void* keys = nullptr;
  void* values = nullptr;
};

// What the pools of all layers have in common.
struct KvForm {
  Type type = Type::kF32;
  std::int64_t num_blocks = 0;
  std::int64_t block_tokens = 0;
  std::int64_t num_kv_heads = 0;
  std::int64_t head_dim = 0;
};

struct AttentionShape {
  std::int64_t num_heads = 0;
  std::int64_t num_kv_heads = 0;
  std::int64_t head_dim = 0;
};

// The tokens of one step, T of them in R rows, and the blocks of S slots. A program that has no use
// for an array takes it empty.
struct StepArrays {
  std::int64_t num_tokens = 0;
  std::span<const std::int32_t> token_ids;     // [T]
  std::span<const std::int32_t> positions;     // [T]
  std::span<const std::int64_t> slot_mapping;  // [T] block * block_tokens + offset
  std::span<const std::int32_t> row_tokens;    // [R] tokens that the step computes, from 1
  std::span<const std::int32_t> row_starts;    // [R] where they begin in [T]
  std::span<const std::int32_t> row_contexts;  // [R] tokens in the cache before the step
  std::span<const std::int32_t> row_slots;     // [R] each row's line of the tables
  std::span<const std::int32_t> block_tables;  // [S, table_columns]
  std::int64_t table_columns = 0;
};

class Program {
 public:
  // `max_tokens`: of one run; `isa`: what operations without weights use.
  // Throws std::invalid_argument where there can be no such program.
  Program(std::shared_ptr<ThreadTeam> team, std::int64_t max_tokens, Isa isa);
  ~Program();
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  // The description. All throw std::invalid_argument that says what doesn't fit; the program is
  // then as it was.

  // Adds a buffer [max_tokens, width], all zeros. Throws std::bad_alloc.
  BufferId add_buffer(std::int64_t width, Type type);

  // Rows of `table` that the step's token ids name.
  void add_embedding(std::shared_ptr<const PackedMatrix> table, BufferId out);

  // Cosines and sines of the step's positions, times `scale`; once, before what rotates.
  void add_rope_angles(std::vector<float> inverse_frequencies, float scale);

  void add_rms_norm(BufferId in, std::vector<float> weight, float epsilon, BufferId out);

  // `bias`: empty, or one for each output of the matrix. Writes columns from `out_column` on.
  void add_linear(BufferId in, std::shared_ptr<const PackedMatrix> matrix, std::vector<float> bias,
                  Epilogue epilogue, BufferId out, std::int64_t out_column = 0);

  // Takes `qkv` [T, (num_heads + 2 * num_kv_heads) * head_dim] apart: rotated queries into `q`,
  // keys and values into the layer's cache. Norms of heads are empty where there are none.
  void add_rope_store(std::int64_t layer, const AttentionShape& shape, BufferId qkv,
                      std::vector<float> q_norm, std::vector<float> k_norm, float epsilon,
                      BufferId q);

  // `sliding_window`: how many tokens one sees, itself included; 0: all.
  void add_attention(std::int64_t layer, const AttentionShape& shape, BufferId q,
                     std::int64_t sliding_window, BufferId out);

  // Where the largest of each row of `in` stands, of equals the first; once. See find_likeliest().
  void add_likeliest(BufferId in);

  // Says where the cache lies, which must outlive the runs: a pair of pools for each layer.
  void bind_cache(const KvForm& form, std::vector<KvPools> layers);

  // Carries the operations out for the first `num_tokens` rows of the buffers. What follows them
  // is left as it is.
  // Throws std::invalid_argument where the arrays fit neither each other nor the program or the
  // cache; nothing has been computed then.
  void run(const StepArrays& step);

  void* data(BufferId buffer);
  Type type(BufferId buffer) const;
  std::int64_t width(BufferId buffer) const;
  std::int64_t stride(BufferId buffer) const;  // elements from row to row; of float32 the width
  std::int64_t max_tokens() const { return max_tokens_; }
  std::span<const std::int32_t> likeliest() const;  // [max_tokens]; empty where nothing looks
  std::int64_t num_operations() const;
  std::int64_t num_barriers() const;  // in a run
  std::int64_t num_runs() const { return num_runs_; }

 private:
  struct Buffer;
  struct Access;
  struct Operation;
  struct Run;
  class Hand;

  const Buffer& buffer(BufferId id) const;
  void check_heads(const AttentionShape& shape) const;
  void append(Operation operation);
  void check(const StepArrays& step) const;
  void check_rows(const StepArrays& step) const;
  void reset_workspaces();

  std::shared_ptr<ThreadTeam> team_;
  const std::int64_t max_tokens_;
  const Isa isa_;
  std::vector<Buffer> buffers_;
  std::vector<Operation> operations_;
  std::vector<Access> since_barrier_;      // by operations behind the last barrier
  std::unique_ptr<TaskCursor[]> cursors_;  // for each operation
  std::unique_ptr<Run> run_;               // what a run needs beside its arrays
  std::int64_t num_runs_ = 0;
};

}  // namespace antiphon::kernels
