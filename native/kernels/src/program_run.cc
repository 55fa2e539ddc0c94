// A program's run: the checks of a step's arrays, and the operations one after the other.
#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>

#include "antiphon/kernels/program.h"
#include "program_parts.h"

namespace antiphon::kernels {

namespace {

[[noreturn]] void refuse(const char* what, std::int64_t value, std::int64_t least,
                         std::int64_t most) {
  throw std::invalid_argument(std::string(what) + " is " + std::to_string(value) + ", expected " +
                              std::to_string(least) + " to " + std::to_string(most));
}

void check_range(const char* what, std::int64_t value, std::int64_t least, std::int64_t most) {
  if (value < least || value > most) {
    refuse(what, value, least, most);
  }
}

template <class Integer>
void check_all(const char* what, std::span<const Integer> values, std::int64_t end) {
  for (const Integer value : values) {
    check_range(what, value, 0, end - 1);
  }
}

void check_length(const char* what, std::size_t found, std::int64_t expected) {
  check_range(what, static_cast<std::int64_t>(found), expected, expected);
}

const float* data_or_null(const std::vector<float>& values) {
  return values.empty() ? nullptr : values.data();
}

}  // namespace

void Program::check(const StepArrays& step) const {
  check_range("num_tokens", step.num_tokens, 1, max_tokens_);
  if (run_->vocabulary_size > 0) {
    check_length("the number of token_ids", step.token_ids.size(), step.num_tokens);
    check_all("an id of token_ids", step.token_ids, run_->vocabulary_size);
  }
  if (run_->has_angles) {
    check_length("the number of positions", step.positions.size(), step.num_tokens);
    check_all("a place of positions", step.positions, std::numeric_limits<std::int32_t>::max());
  }
  if (run_->num_layers > 0) {
    check_length("the number of layers of the cache, which bind_cache tells,", run_->pools.size(),
                 run_->num_layers);
    const KvForm& form = run_->form;
    check_length("the number of slot_mapping", step.slot_mapping.size(), step.num_tokens);
    check_all("a place of slot_mapping", step.slot_mapping, form.num_blocks * form.block_tokens);
    check_rows(step);
  }
}

void Program::check_rows(const StepArrays& step) const {
  const KvForm& form = run_->form;
  const auto num_rows = static_cast<std::int64_t>(step.row_tokens.size());
  check_length("the number of row_starts", step.row_starts.size(), num_rows);
  check_length("the number of row_contexts", step.row_contexts.size(), num_rows);
  check_length("the number of row_slots", step.row_slots.size(), num_rows);
  const std::int64_t num_slots = static_cast<std::int64_t>(step.block_tables.size()) /
                                 std::max<std::int64_t>(1, step.table_columns);
  check_all("a slot of row_slots", step.row_slots, num_slots);
  std::int64_t start = 0;
  for (std::int64_t row = 0; row < num_rows; ++row) {
    const std::int64_t num_tokens = step.row_tokens[row];
    const std::int64_t context = step.row_contexts[row];
    check_range("a length of row_tokens", num_tokens, 1, step.num_tokens - start);
    check_range("a place of row_starts", step.row_starts[row], start, start);
    check_range("a length of row_contexts", context, 0,
                step.table_columns * form.block_tokens - num_tokens);
    const std::int64_t num_blocks =
        (context + num_tokens + form.block_tokens - 1) / form.block_tokens;
    check_all("a block of block_tables",
              step.block_tables.subspan(step.row_slots[row] * step.table_columns, num_blocks),
              form.num_blocks);
    start += num_tokens;
  }
  check_range("the sum of row_tokens", start, step.num_tokens, step.num_tokens);
}

// An operation's arguments, for one worker.
class Program::Hand {
 public:
  Hand(Program& program, Worker& worker, const StepArrays& step)
      : program_(program), run_(*program.run_), worker_(worker), step_(step) {}

  void carry_out(const Operation& operation, TaskCursor& cursor) {
    cursor_ = &cursor;
    std::visit([this](const auto& what) { do_one(what); }, operation.what);
  }

 private:
  Rows rows(BufferId id) const {
    const Buffer& buffer = program_.buffers_[static_cast<std::size_t>(id)];
    return {buffer.data, buffer.type, step_.num_tokens, buffer.stride};
  }

  RowsOut rows_out(BufferId id) const {
    const Buffer& buffer = program_.buffers_[static_cast<std::size_t>(id)];
    return {buffer.data, buffer.type, buffer.stride};
  }

  void do_one(const EmbeddingOperation& what) {
    embed(worker_, *cursor_, *what.table, step_.token_ids.data(), step_.num_tokens,
          rows_out(what.out));
  }

  void do_one(const AnglesOperation& what) {
    const RopeAngles angles{step_.positions.data(),
                            step_.num_tokens,
                            what.inverse_frequencies.data(),
                            static_cast<std::int64_t>(what.inverse_frequencies.size()),
                            what.scale,
                            run_.cosines.data(),
                            run_.sines.data()};
    rope_angles(worker_, *cursor_, angles);
  }

  void do_one(const NormOperation& what) {
    const RmsNorm norm{what.weight.data(), static_cast<std::int64_t>(what.weight.size()),
                       what.epsilon};
    rms_norm(worker_, *cursor_, norm, rows(what.in), rows_out(what.out), program_.isa_);
  }

  void do_one(const LinearOperation& what) {
    linear(worker_, *cursor_, *what.matrix, rows(what.in), data_or_null(what.bias), what.epilogue,
           rows_out(what.out), what.out_column);
  }

  void do_one(const RopeStoreOperation& what) {
    const KvPools& pools = run_.pools[static_cast<std::size_t>(what.layer)];
    const RopeStore store{static_cast<int>(what.shape.num_heads),
                          static_cast<int>(what.shape.num_kv_heads),
                          static_cast<int>(what.shape.head_dim),
                          data_or_null(what.q_norm),
                          data_or_null(what.k_norm),
                          what.epsilon,
                          run_.cosines.data(),
                          run_.sines.data(),
                          pools.keys,
                          pools.values,
                          run_.form.type,
                          step_.slot_mapping.data()};
    rope_store(worker_, *cursor_, store, rows(what.qkv), rows_out(what.q), program_.isa_);
  }

  void do_one(const AttentionOperation& what) {
    const KvPools& pools = run_.pools[static_cast<std::size_t>(what.layer)];
    const AttentionStep rows_of_step{static_cast<std::int64_t>(step_.row_tokens.size()),
                                     step_.row_tokens.data(),
                                     step_.row_starts.data(),
                                     step_.row_contexts.data(),
                                     step_.row_slots.data(),
                                     step_.block_tables.data(),
                                     step_.table_columns};
    const AttentionLayer layer{static_cast<int>(what.shape.num_heads),
                               static_cast<int>(what.shape.num_kv_heads),
                               static_cast<int>(what.shape.head_dim),
                               static_cast<int>(run_.form.block_tokens),
                               1.0F / std::sqrt(static_cast<float>(what.shape.head_dim)),
                               static_cast<int>(what.sliding_window),
                               pools.keys,
                               pools.values,
                               run_.form.type};
    attention(worker_, *cursor_, *run_.workspace, rows_of_step, layer, rows(what.q),
              rows_out(what.out), program_.isa_);
  }

  void do_one(const LikeliestOperation& what) {
    find_likeliest(worker_, *cursor_, *run_.largest, rows(what.in), run_.likeliest.data());
  }

  Program& program_;
  Run& run_;
  Worker& worker_;
  const StepArrays& step_;
  TaskCursor* cursor_ = nullptr;
};

// After a region that threw, what it counted may be off.
void Program::reset_workspaces() {
  if (run_->workspace != nullptr) {
    run_->workspace->reset();
  }
  if (run_->largest != nullptr) {
    run_->largest->reset();
  }
}

void Program::run(const StepArrays& step) {
  check(step);
  for (std::size_t index = 0; index < operations_.size(); ++index) {
    cursors_[index].reset();
  }
  reset_workspaces();
  const auto region = [&](Worker& worker) {
    Hand hand(*this, worker, step);
    for (std::size_t index = 0; index < operations_.size(); ++index) {
      if (operations_[index].behind_barrier) {
        worker.barrier();
      }
      hand.carry_out(operations_[index], cursors_[index]);
    }
  };
  try {
    team_->run(region);
  } catch (...) {
    reset_workspaces();
    throw;
  }
  ++num_runs_;
}

}  // namespace antiphon::kernels
