// Products of integers with AVX-512's dot products of bytes.
#include <immintrin.h>

#include "../avx512/vector_math.h"
#include "../finish_rows.h"
#include "../integer_products.h"

namespace antiphon::kernels {
namespace {

struct WideVector {
  static constexpr int kLanes = 16;
  static constexpr int kRows = 6;
  using Integers = __m512i;
  using Floats = __m512;

  static Integers load(const std::byte* from) { return _mm512_load_si512(from); }
  static Integers set(std::int32_t value) { return _mm512_set1_epi32(value); }
  static Integers set_quad(const std::int8_t* inputs) {
    std::int32_t quad = 0;
    __builtin_memcpy(&quad, inputs, sizeof(quad));
    return _mm512_set1_epi32(quad);
  }
  // Of four bytes each, from 0 up by those with a sign.
  static Integers dot(Integers sums, Integers weights, Integers inputs) {
    return _mm512_dpbusd_epi32(sums, weights, inputs);
  }
  template <int left>
  static Integers moved(Integers words, int mask) {
    if constexpr (left > 0) {
      words = _mm512_slli_epi32(words, left);
    } else if constexpr (left < 0) {
      words = _mm512_srli_epi32(words, -left);
    }
    return _mm512_and_si512(words, _mm512_set1_epi32(mask));
  }
  static Integers merged(Integers a, Integers b) { return _mm512_or_si512(a, b); }

  static Floats zeros() { return _mm512_setzero_ps(); }
  static Floats set_float(float value) { return _mm512_set1_ps(value); }
  static Floats load_floats(const float* from) { return _mm512_loadu_ps(from); }
  static void store_floats(float* to, Floats values) { _mm512_storeu_ps(to, values); }
  static Floats load_halves(const std::byte* from) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  }
  static Floats to_floats(Integers values) { return _mm512_cvtepi32_ps(values); }
  static Floats multiplied(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
  static Floats fma(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
};

void arrange_integers(const Arranging& work) { integer_rows::arrange(work); }

constexpr ProductKernels kernels_of(Type input_type) {
  return integer_products::kernels<WideVector>(
      input_type, finishing::finish_rows<avx512::FloatVector>, arrange_integers);
}

constexpr ProductKernels kOfFloats = kernels_of(Type::kF32);
constexpr ProductKernels kOfHalves = kernels_of(Type::kBf16);

}  // namespace

// They take rows of either type: of that which other products have here, beside which they are
// used.
const ProductKernels& avx512_vnni_kernels() {
  return has(Isa::kAvx512Bf16) ? kOfHalves : kOfFloats;
}

}  // namespace antiphon::kernels
