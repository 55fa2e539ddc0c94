#pragma once

#include <cstdint>

#include "antiphon/kernels/activations.h"
#include "antiphon/kernels/cpu_features.h"
#include "antiphon/kernels/thread_team.h"

namespace antiphon::kernels {

// Angles of rotary positions, made once a step for all layers. T: tokens, D: head dimension.
struct RopeAngles {
  const std::int32_t* positions;     // [T], from 0
  std::int64_t num_tokens;           // T
  const float* inverse_frequencies;  // [D / 2]
  std::int64_t num_frequencies;      // D / 2
  float scale;                       // of cosines and sines
  float* cos;                        // [T, D / 2], written
  float* sin;                        // [T, D / 2], written
};

// Called by every worker of a region, with a cursor as in `rms_norm`.
void rope_angles(Worker& worker, TaskCursor& cursor, const RopeAngles& angles);

// What follows the projection to queries, keys and values in one layer. N: query heads, K:
// key-value heads, D: head dimension, even; T: tokens.
struct RopeStore {
  int num_heads;        // N
  int num_kv_heads;     // K
  int head_dim;         // D
  const float* q_norm;  // [D], or null where queries are not normalised
  const float* k_norm;  // [D], or null
  float epsilon;        // of those norms
  const float* cos;     // [T, D / 2]
  const float* sin;
  void* k_pool;  // [blocks, tokens of a block, K, D]
  void* v_pool;
  Type kv_type;
  const std::int64_t* slot_mapping;  // [T]: block * tokens of a block + place in it
};

// Normalises heads where there are norms, rotates queries and keys (of a pair one lies in each half
// of a head), writes queries to `q`, [T, N * D], and stores keys and values at their slots.
// Computed in f32 and rounded once. `qkv` is [T, (N + 2 K) * D]. Called by every worker of a
// region, with a cursor as in `rms_norm`. No two tokens have the same slot, but for block 0's,
// which nobody reads. REQUIRES: `qkv` is f32
void rope_store(Worker& worker, TaskCursor& cursor, const RopeStore& op, const Rows& qkv,
                const RowsOut& q, Isa isa = best_isa());

}  // namespace antiphon::kernels
