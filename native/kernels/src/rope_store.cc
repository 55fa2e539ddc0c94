#include "antiphon/kernels/rope_store.h"

#include <cmath>
#include <stdexcept>

#include "row_kernels.h"
#include "row_tasks.h"

namespace antiphon::kernels {

namespace {

// One token's heads.
class TokenHeads {
 public:
  TokenHeads(const RopeStore& op, const RowKernels& kernels, std::int64_t token, float* scratch)
      : op_(op), kernels_(kernels), token_(token), normalised_(scratch) {}

  // Writes `count` heads one after the other, normalised where there is a norm, and rotated.
  void rotate(const float* heads, int count, const float* norm, void* out, Type type) const {
    const std::int64_t half = op_.head_dim / 2;
    for (int i = 0; i < count; ++i) {
      const float* head = heads + std::int64_t{i} * op_.head_dim;
      if (norm != nullptr) {
        kernels_.rms_norm(head, norm, op_.head_dim, op_.epsilon, normalised_, Type::kF32);
        head = normalised_;
      }
      kernels_.rotate(head, op_.cos + token_ * half, op_.sin + token_ * half, half,
                      element(out, type, std::int64_t{i} * op_.head_dim), type);
    }
  }

 private:
  const RopeStore& op_;
  const RowKernels& kernels_;
  std::int64_t token_;
  float* normalised_;
};

}  // namespace

void rope_angles(Worker& worker, TaskCursor& cursor, const RopeAngles& angles) {
  for_each_row(worker, cursor, angles.num_tokens, [&](std::int64_t token) {
    const auto position = static_cast<float>(angles.positions[token]);
    for (std::int64_t i = 0; i < angles.num_frequencies; ++i) {
      const float angle = position * angles.inverse_frequencies[i];
      angles.cos[token * angles.num_frequencies + i] = std::cos(angle) * angles.scale;
      angles.sin[token * angles.num_frequencies + i] = std::sin(angle) * angles.scale;
    }
  });
}

void rope_store(Worker& worker, TaskCursor& cursor, const RopeStore& op, const Rows& qkv,
                const RowsOut& q, Isa isa) {
  if (qkv.type != Type::kF32) {
    throw std::invalid_argument("rope_store takes queries, keys and values in f32 only");
  }
  const RowKernels& kernels = row_kernels(isa);
  const std::int64_t q_size = std::int64_t{op.num_heads} * op.head_dim;
  const std::int64_t kv_size = std::int64_t{op.num_kv_heads} * op.head_dim;
  auto* scratch = reinterpret_cast<float*>(
      worker.scratch(static_cast<std::size_t>(op.head_dim) * sizeof(float)));
  for_each_row(worker, cursor, qkv.num_rows, [&](std::int64_t token) {
    const float* row = static_cast<const float*>(qkv.data) + token * qkv.stride;
    const TokenHeads heads(op, kernels, token, scratch);
    const std::int64_t slot = op.slot_mapping[token] * kv_size;
    heads.rotate(row, op.num_heads, op.q_norm, element(q.data, q.type, token * q.stride), q.type);
    heads.rotate(row + q_size, op.num_kv_heads, op.k_norm, element(op.k_pool, op.kv_type, slot),
                 op.kv_type);
    kernels.copy(row + q_size + kv_size, kv_size, element(op.v_pool, op.kv_type, slot), op.kv_type);
  });
}

}  // namespace antiphon::kernels
