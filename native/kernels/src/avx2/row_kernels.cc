#include "../row_kernels.h"

#include "../row_templates.h"
#include "vector_math.h"

namespace antiphon::kernels::avx2 {

const RowKernels kRowKernels = row_templates::kKernels<FloatVector>;

}  // namespace antiphon::kernels::avx2
