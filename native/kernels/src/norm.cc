#include "antiphon/kernels/norm.h"

#include <stdexcept>

#include "row_kernels.h"
#include "row_tasks.h"

namespace antiphon::kernels {

void rms_norm(Worker& worker, TaskCursor& cursor, const RmsNorm& norm, const Rows& in,
              const RowsOut& out, Isa isa) {
  if (in.type != Type::kF32) {
    throw std::invalid_argument("rms_norm takes rows in f32 only");
  }
  const RowKernels& kernels = row_kernels(isa);
  for_each_row(worker, cursor, in.num_rows, [&](std::int64_t row) {
    kernels.rms_norm(static_cast<const float*>(in.data) + row * in.stride, norm.weight, norm.size,
                     norm.epsilon, element(out.data, out.type, row * out.stride), out.type);
  });
}

}  // namespace antiphon::kernels
