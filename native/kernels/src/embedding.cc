#include "antiphon/kernels/embedding.h"

#include <stdexcept>

#include "row_tasks.h"

namespace antiphon::kernels {

void embed(Worker& worker, TaskCursor& cursor, const PackedMatrix& table, const std::int32_t* ids,
           std::int64_t num_tokens, const RowsOut& out) {
  if (out.type != Type::kF32) {
    throw std::invalid_argument("embed writes rows in f32 only");
  }
  for_each_row(worker, cursor, num_tokens, [&](std::int64_t token) {
    table.unpack_row(ids[token], static_cast<float*>(out.data) + token * out.stride);
  });
}

}  // namespace antiphon::kernels
