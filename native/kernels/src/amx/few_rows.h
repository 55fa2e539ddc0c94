// Products of few rows: weights are unpacked while they are multiplied.
#pragma once

#include "../product_kernels.h"

namespace antiphon::kernels::amx {

// See ProductKernels.
void arrange(const Arranging& work);

template <WeightFormat format>
void multiply_few(const Unpacking& work, const Product& product);

extern template void multiply_few<WeightFormat::kInt8>(const Unpacking&, const Product&);
extern template void multiply_few<WeightFormat::kInt6>(const Unpacking&, const Product&);
extern template void multiply_few<WeightFormat::kInt5>(const Unpacking&, const Product&);
extern template void multiply_few<WeightFormat::kInt4>(const Unpacking&, const Product&);

}  // namespace antiphon::kernels::amx
