#include "../attention_kernels.h"
#include "../attention_templates.h"
#include "vector_math.h"

namespace antiphon::kernels::avx2 {

const AttentionKernels kAttentionKernels = attention_templates::kKernels<FloatVector>;

}  // namespace antiphon::kernels::avx2
