#pragma once

#include <cstdint>

#include "antiphon/kernels/activations.h"
#include "antiphon/kernels/packed_matrix.h"
#include "antiphon/kernels/thread_team.h"

namespace antiphon::kernels {

// Writes the rows of `table` that `ids`, [num_tokens], name to `out`, in f32. For models whose
// embedding is their head too, `table` is the packed head: nothing is kept twice. Called by every
// worker of a region, with a cursor as in `rms_norm`.
// REQUIRES: each id is a row of `table`; `out` is f32
void embed(Worker& worker, TaskCursor& cursor, const PackedMatrix& table, const std::int32_t* ids,
           std::int64_t num_tokens, const RowsOut& out);

}  // namespace antiphon::kernels
