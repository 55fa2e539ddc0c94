// Random attention over a scattered cache, and a naive model of it in double precision. What loops
// is in the source, which is optimized where tests are not.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "antiphon/kernels/attention.h"
#include "bfloat16.h"

namespace antiphon::kernels {

// Elements of either type.
class Elements {
 public:
  Elements() = default;
  Elements(Type type, std::int64_t count) : type_(type) {
    (type == Type::kF32 ? floats_.resize(count) : floats_.resize(0));
    (type == Type::kBf16 ? halves_.resize(count) : halves_.resize(0));
  }
  Type type() const { return type_; }
  void* data() { return type_ == Type::kF32 ? static_cast<void*>(floats_.data()) : halves_.data(); }
  float at(std::int64_t i) const {
    return type_ == Type::kF32 ? floats_[i] : from_bf16(halves_[i]);
  }
  void set(std::int64_t i, float value) {
    if (type_ == Type::kF32) {
      floats_[i] = value;
    } else {
      halves_[i] = to_bf16(value);
    }
  }
  std::int64_t size() const {
    return static_cast<std::int64_t>(type_ == Type::kF32 ? floats_.size() : halves_.size());
  }

 private:
  Type type_ = Type::kF32;
  std::vector<float> floats_;
  std::vector<std::uint16_t> halves_;
};

struct RowSize {
  int context;
  int tokens;
};

struct SequenceShape {
  int num_kv_heads = 2;
  int group = 3;
  int head_dim = 64;
  int block_tokens = 16;
  int window = 0;
  Type kv_type = Type::kBf16;
  Type q_type = Type::kBf16;
  Type out_type = Type::kF32;
};

// One sequence's whole life: keys, values and queries of every position. Steps compute parts of it.
class AttentionSequence {
 public:
  AttentionSequence(const SequenceShape& shape, std::int64_t length, std::uint32_t seed);

  std::int64_t length() const { return length_; }
  std::int64_t q_size() const {
    return std::int64_t{shape_.num_kv_heads} * shape_.group * shape_.head_dim;
  }
  std::int64_t kv_size() const { return std::int64_t{shape_.num_kv_heads} * shape_.head_dim; }
  const Elements& keys() const { return keys_; }
  const Elements& values() const { return values_; }
  const Elements& queries() const { return queries_; }
  float scale() const { return 1.0F / std::sqrt(static_cast<float>(shape_.head_dim)); }

  // What query head `head` of position `position` attends to.
  std::vector<double> naive(std::int64_t position, int head) const;

 private:
  SequenceShape shape_;
  std::int64_t length_;
  Elements keys_;
  Elements values_;
  Elements queries_;
};

// A step over rows of sequences, each at a place of its own, with keys and values in random blocks.
class AttentionRun {
 public:
  struct Row {
    const AttentionSequence* sequence;
    RowSize size;
  };

  AttentionRun(const SequenceShape& shape, std::vector<Row> rows, std::uint32_t seed);

  // Returns [tokens, heads * head_dim].
  Elements run(ThreadTeam& team, AttentionWorkspace& workspace, Isa isa);

  std::int64_t first_token(std::size_t row) const { return cu_q_[row]; }

 private:
  void place(std::size_t row, std::vector<std::int32_t>& free);

  SequenceShape shape_;
  std::vector<Row> rows_;
  std::vector<std::int32_t> cu_q_;
  std::vector<std::int32_t> q_len_;
  std::vector<std::int32_t> ctx_len_;
  std::vector<std::int32_t> slots_;  // the last row's is the first
  std::vector<std::int32_t> table_;
  std::int64_t table_stride_ = 0;
  std::int32_t num_tokens_ = 0;
  Elements k_pool_;
  Elements v_pool_;
  Elements q_;
};

}  // namespace antiphon::kernels
