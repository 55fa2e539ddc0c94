// Products of integers with dot products of bytes in vectors of 256 bits.
#include <immintrin.h>

#include "../avx2/vector_math.h"
#include "../finish_rows.h"
#include "../integer_products.h"

namespace antiphon::kernels {
namespace {

struct NarrowVector {
  static constexpr int kLanes = 8;
  static constexpr int kRows = 3;
  using Integers = __m256i;
  using Floats = __m256;

  static Integers load(const std::byte* from) {
    return _mm256_load_si256(reinterpret_cast<const __m256i*>(from));
  }
  static Integers set(std::int32_t value) { return _mm256_set1_epi32(value); }
  static Integers set_quad(const std::int8_t* inputs) {
    std::int32_t quad = 0;
    __builtin_memcpy(&quad, inputs, sizeof(quad));
    return _mm256_set1_epi32(quad);
  }
  // Of four bytes each, from 0 up by those with a sign.
  static Integers dot(Integers sums, Integers weights, Integers inputs) {
    return _mm256_dpbusd_avx_epi32(sums, weights, inputs);
  }
  template <int left>
  static Integers moved(Integers words, int mask) {
    if constexpr (left > 0) {
      words = _mm256_slli_epi32(words, left);
    } else if constexpr (left < 0) {
      words = _mm256_srli_epi32(words, -left);
    }
    return _mm256_and_si256(words, _mm256_set1_epi32(mask));
  }
  static Integers merged(Integers a, Integers b) { return _mm256_or_si256(a, b); }

  static Floats zeros() { return _mm256_setzero_ps(); }
  static Floats set_float(float value) { return _mm256_set1_ps(value); }
  static Floats load_floats(const float* from) { return _mm256_loadu_ps(from); }
  static void store_floats(float* to, Floats values) { _mm256_storeu_ps(to, values); }
  static Floats load_halves(const std::byte* from) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  }
  static Floats to_floats(Integers values) { return _mm256_cvtepi32_ps(values); }
  static Floats multiplied(Floats a, Floats b) { return _mm256_mul_ps(a, b); }
  static Floats fma(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
};

void arrange_integers(const Arranging& work) { integer_rows::arrange(work); }

constexpr ProductKernels kKernels = integer_products::kernels<NarrowVector>(
    Type::kF32, finishing::finish_rows<avx2::FloatVector>, arrange_integers);

}  // namespace

const ProductKernels& avx_vnni_kernels() { return kKernels; }

}  // namespace antiphon::kernels
