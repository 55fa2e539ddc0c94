#include "attention_case.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <utility>

#include "random_floats.h"

namespace antiphon::kernels {

AttentionSequence::AttentionSequence(const SequenceShape& shape, std::int64_t length,
                                     std::uint32_t seed)
    : shape_(shape), length_(length) {
  std::mt19937 random(seed);
  const std::int64_t kv_size = length * shape.num_kv_heads * shape.head_dim;
  keys_ = Elements(shape.kv_type, kv_size);
  values_ = Elements(shape.kv_type, kv_size);
  queries_ = Elements(shape.q_type, kv_size * shape.group);
  for (Elements* elements : {&keys_, &values_, &queries_}) {
    const std::vector<float> floats =
        random_floats(random, elements->size(), elements == &queries_ ? 2 : 1);
    for (std::int64_t i = 0; i < elements->size(); ++i) {
      elements->set(i, floats[i]);
    }
  }
}

std::vector<double> AttentionSequence::naive(std::int64_t position, int head) const {
  const int dim = shape_.head_dim;
  const std::int64_t kv_offset = std::int64_t{head / shape_.group} * dim;
  const std::int64_t first =
      shape_.window > 0 ? std::max<std::int64_t>(0, position + 1 - shape_.window) : 0;
  std::vector<double> scores;
  double largest = -std::numeric_limits<double>::infinity();
  for (std::int64_t key = first; key <= position; ++key) {
    double dot = 0;
    for (int i = 0; i < dim; ++i) {
      dot += static_cast<double>(queries_.at(position * q_size() + head * dim + i)) *
             keys_.at(key * kv_size() + kv_offset + i);
    }
    scores.push_back(dot * scale());
    largest = std::max(largest, scores.back());
  }
  double sum = 0;
  std::vector<double> out(static_cast<std::size_t>(dim), 0.0);
  for (std::int64_t key = first; key <= position; ++key) {
    const double weight = std::exp(scores[static_cast<std::size_t>(key - first)] - largest);
    sum += weight;
    for (int i = 0; i < dim; ++i) {
      out[static_cast<std::size_t>(i)] += weight * values_.at(key * kv_size() + kv_offset + i);
    }
  }
  for (double& value : out) {
    value /= sum;
  }
  return out;
}

AttentionRun::AttentionRun(const SequenceShape& shape, std::vector<Row> rows, std::uint32_t seed)
    : shape_(shape), rows_(std::move(rows)) {
  std::int64_t num_blocks = 1;
  for (const Row& row : rows_) {
    const std::int64_t end = row.size.context + row.size.tokens;
    const std::int64_t blocks = (end + shape.block_tokens - 1) / shape.block_tokens;
    table_stride_ = std::max(table_stride_, blocks);
    num_blocks += blocks;
    cu_q_.push_back(num_tokens_);
    q_len_.push_back(row.size.tokens);
    ctx_len_.push_back(row.size.context);
    num_tokens_ += row.size.tokens;
  }
  slots_.resize(rows_.size());
  std::iota(slots_.rbegin(), slots_.rend(), 0);
  std::vector<std::int32_t> free(static_cast<std::size_t>(num_blocks - 1));
  std::iota(free.begin(), free.end(), 1);
  std::mt19937 random(seed);
  std::shuffle(free.begin(), free.end(), random);
  // What no row may read: no number, and blocks that there aren't.
  table_.assign(static_cast<std::size_t>(table_stride_) * rows_.size(), -1'000'000'000);
  const std::int64_t kv_size = rows_.front().sequence->kv_size();
  k_pool_ = Elements(shape.kv_type, num_blocks * shape.block_tokens * kv_size);
  v_pool_ = Elements(shape.kv_type, num_blocks * shape.block_tokens * kv_size);
  for (std::int64_t i = 0; i < k_pool_.size(); ++i) {
    k_pool_.set(i, std::numeric_limits<float>::quiet_NaN());
    v_pool_.set(i, std::numeric_limits<float>::quiet_NaN());
  }
  q_ = Elements(shape.q_type, num_tokens_ * rows_.front().sequence->q_size());
  for (std::size_t row = 0; row < rows_.size(); ++row) {
    place(row, free);
  }
}

Elements AttentionRun::run(ThreadTeam& team, AttentionWorkspace& workspace, Isa isa) {
  const std::int64_t q_size = rows_.front().sequence->q_size();
  Elements out(shape_.out_type, num_tokens_ * q_size);
  const AttentionStep step{.num_rows = static_cast<std::int64_t>(rows_.size()),
                           .q_len = q_len_.data(),
                           .cu_q = cu_q_.data(),
                           .ctx_len = ctx_len_.data(),
                           .slots = slots_.data(),
                           .block_table = table_.data(),
                           .table_stride = table_stride_};
  const AttentionLayer layer{.num_heads = shape_.num_kv_heads * shape_.group,
                             .num_kv_heads = shape_.num_kv_heads,
                             .head_dim = shape_.head_dim,
                             .block_tokens = shape_.block_tokens,
                             .scale = rows_.front().sequence->scale(),
                             .sliding_window = shape_.window,
                             .k_pool = k_pool_.data(),
                             .v_pool = v_pool_.data(),
                             .kv_type = shape_.kv_type};
  const Rows q{q_.data(), q_.type(), num_tokens_, q_size};
  TaskCursor cursor;
  team.run([&](Worker& worker) {
    attention(worker, cursor, workspace, step, layer, q, {out.data(), out.type(), q_size}, isa);
  });
  return out;
}

void AttentionRun::place(std::size_t row, std::vector<std::int32_t>& free) {
  const auto& [sequence, size] = rows_[row];
  const std::int64_t kv_size = sequence->kv_size();
  for (std::int64_t position = 0; position < size.context + size.tokens; ++position) {
    std::int32_t& block = table_[static_cast<std::size_t>(slots_[row] * table_stride_ +
                                                          position / shape_.block_tokens)];
    if (position % shape_.block_tokens == 0) {
      block = free.back();
      free.pop_back();
    }
    const std::int64_t slot =
        std::int64_t{block} * shape_.block_tokens + position % shape_.block_tokens;
    for (std::int64_t i = 0; i < kv_size; ++i) {
      k_pool_.set(slot * kv_size + i, sequence->keys().at(position * kv_size + i));
      v_pool_.set(slot * kv_size + i, sequence->values().at(position * kv_size + i));
    }
  }
  const std::int64_t q_size = sequence->q_size();
  for (std::int64_t i = 0; i < size.tokens * q_size; ++i) {
    q_.set(cu_q_[row] * q_size + i, sequence->queries().at(size.context * q_size + i));
  }
}

}  // namespace antiphon::kernels
