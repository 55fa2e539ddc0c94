// What small ops do with one row, for each instruction set.
#pragma once

#include <cstdint>

#include "antiphon/kernels/activations.h"
#include "antiphon/kernels/cpu_features.h"

namespace antiphon::kernels {

struct RowKernels {
  // out[i] = in[i] / sqrt(mean(in^2) + epsilon) * weight[i]; `out` may be `in`.
  void (*rms_norm)(const float* in, const float* weight, std::int64_t size, float epsilon,
                   void* out, Type type);
  // Rotates pairs (head[i], head[half + i]) by cos[i] and sin[i]; `out` may be `head`.
  void (*rotate)(const float* head, const float* cos, const float* sin, std::int64_t half,
                 void* out, Type type);
  void (*copy)(const float* in, std::int64_t size, void* out, Type type);
  // The largest; no number where one of them isn't finite.
  float (*largest)(const float* values, std::int64_t size);
  // out[i] = e^((in[i] - largest) / divisor); `out` may be `in`.
  void (*weigh)(const float* in, std::int64_t size, float largest, float divisor, float* out);
};

namespace portable {
extern const RowKernels kRowKernels;
}
namespace avx2 {
extern const RowKernels kRowKernels;
}
namespace avx512 {
extern const RowKernels kRowKernels;
}

const RowKernels& row_kernels(Isa isa);

}  // namespace antiphon::kernels
