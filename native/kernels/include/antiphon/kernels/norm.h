#pragma once

#include <cstdint>

#include "antiphon/kernels/activations.h"
#include "antiphon/kernels/cpu_features.h"
#include "antiphon/kernels/thread_team.h"

namespace antiphon::kernels {

struct RmsNorm {
  const float* weight;  // [size]
  std::int64_t size;
  float epsilon;
};

// out = in / sqrt(mean(in^2) + epsilon) * weight, row by row, computed in f32. Called by every
// worker of a region; `cursor` begins at 0 and is this op's own until the next barrier.
// REQUIRES: `in` is f32
void rms_norm(Worker& worker, TaskCursor& cursor, const RmsNorm& norm, const Rows& in,
              const RowsOut& out, Isa isa = best_isa());

}  // namespace antiphon::kernels
