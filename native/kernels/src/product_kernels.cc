#include "product_kernels.h"

#include <algorithm>

namespace antiphon::kernels {

const ProductKernels& product_kernels(Isa isa, WeightFormat format) {
  if (format == WeightFormat::kF32 || format == WeightFormat::kBf16) {
    isa = base_of(isa);
  }
  // Dot products of bfloat16 would cut float32 weights short.
  if (format == WeightFormat::kF32) {
    isa = std::min(isa, Isa::kAvx512);
  }
  switch (isa) {
#ifdef ANTIPHON_KERNELS_X86
    case Isa::kAmx:
      return amx_kernels();
    case Isa::kAvx512Bf16:
      return avx512_bf16_kernels();
    case Isa::kAvx512Vnni:
      return avx512_vnni_kernels();
    case Isa::kAvxVnni:
      return avx_vnni_kernels();
    case Isa::kAvx512:
      return avx512_kernels();
    case Isa::kAvx2:
      return avx2_kernels();
#endif
    default:
      return portable_kernels();
  }
}

}  // namespace antiphon::kernels
