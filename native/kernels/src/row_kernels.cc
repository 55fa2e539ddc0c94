#include "row_kernels.h"

namespace antiphon::kernels {

const RowKernels& row_kernels(Isa isa) {
  isa = base_of(isa);
#if defined(ANTIPHON_KERNELS_X86)
  if (isa >= Isa::kAvx512) {
    return avx512::kRowKernels;
  }
  if (isa >= Isa::kAvx2) {
    return avx2::kRowKernels;
  }
#endif
  static_cast<void>(isa);
  return portable::kRowKernels;
}

}  // namespace antiphon::kernels
