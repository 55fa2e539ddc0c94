#include "../attention_kernels.h"
#include "../attention_templates.h"
#include "vector_math.h"

namespace antiphon::kernels::portable {

const AttentionKernels kAttentionKernels = attention_templates::kKernels<FloatVector>;

}  // namespace antiphon::kernels::portable
