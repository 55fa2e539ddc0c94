// For sources compiled for AVX2 and FMA, or more.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "../exponential.h"

namespace antiphon::kernels::avx2 {

// 8 floats at once.
struct FloatVector {
  static constexpr int kLanes = 8;
  static constexpr int kTileRows = 6;     // of a product held in registers,
  static constexpr int kTileVectors = 2;  // and vectors of each

  __m256 lanes;

  static FloatVector set(float value) { return {_mm256_set1_ps(value)}; }
  static FloatVector load(const float* from) { return {_mm256_loadu_ps(from)}; }
  // The first `count` of them, zeros behind.
  static FloatVector load_first(const float* from, std::int64_t count) {
    return {_mm256_maskload_ps(from, first(static_cast<int>(count)))};
  }
  static FloatVector load_bf16(const std::uint16_t* from) {
    return widen(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  }
  static FloatVector load_bf16_first(const std::uint16_t* from, std::int64_t count) {
    if (count == kLanes) {
      return load_bf16(from);
    }
    alignas(16) std::uint16_t halves[kLanes] = {};
    for (std::int64_t i = 0; i < count; ++i) {
      halves[i] = from[i];
    }
    return load_bf16(halves);
  }
  void store(float* to) const { _mm256_storeu_ps(to, lanes); }
  void store_first(float* to, std::int64_t count) const {
    _mm256_maskstore_ps(to, first(static_cast<int>(count)), lanes);
  }
  void store_bf16(std::uint16_t* to) const {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), narrow());
  }
  void store_bf16_first(std::uint16_t* to, std::int64_t count) const {
    if (count == kLanes) {
      store_bf16(to);
      return;
    }
    alignas(16) std::uint16_t halves[kLanes];
    store_bf16(halves);
    for (std::int64_t i = 0; i < count; ++i) {
      to[i] = halves[i];
    }
  }

  friend FloatVector operator+(FloatVector a, FloatVector b) {
    return {_mm256_add_ps(a.lanes, b.lanes)};
  }
  friend FloatVector operator-(FloatVector a, FloatVector b) {
    return {_mm256_sub_ps(a.lanes, b.lanes)};
  }
  friend FloatVector operator*(FloatVector a, FloatVector b) {
    return {_mm256_mul_ps(a.lanes, b.lanes)};
  }
  friend FloatVector operator/(FloatVector a, FloatVector b) {
    return {_mm256_div_ps(a.lanes, b.lanes)};
  }
  static FloatVector fma(FloatVector a, FloatVector b, FloatVector c) {
    return {_mm256_fmadd_ps(a.lanes, b.lanes, c.lanes)};
  }
  // `b` where one of them is no number.
  static FloatVector max(FloatVector a, FloatVector b) { return {_mm256_max_ps(a.lanes, b.lanes)}; }
  // `inside` in the lanes `first_lane` to `last_lane` - 1, `outside` in all others.
  static FloatVector select(int first_lane, int last_lane, FloatVector inside,
                            FloatVector outside) {
    const __m256i mask = _mm256_andnot_si256(first(first_lane), first(last_lane));
    return {_mm256_blendv_ps(outside.lanes, inside.lanes, _mm256_castsi256_ps(mask))};
  }
  float sum() const {
    __m128 half = _mm_add_ps(_mm256_castps256_ps128(lanes), _mm256_extractf128_ps(lanes, 1));
    half = _mm_add_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_add_ss(half, _mm_movehdup_ps(half)));
  }
  float largest() const {
    __m128 half = _mm_max_ps(_mm256_castps256_ps128(lanes), _mm256_extractf128_ps(lanes, 1));
    half = _mm_max_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_max_ss(half, _mm_movehdup_ps(half)));
  }

  static FloatVector round(FloatVector x) {
    return {_mm256_round_ps(x.lanes, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
  }
  // x * 2^n for integers n from -250 to 250.
  static FloatVector scale(FloatVector x, FloatVector n) {
    const __m256i exponents = _mm256_cvtps_epi32(n.lanes);
    const __m256i half = _mm256_srai_epi32(exponents, 1);
    const __m256 part = _mm256_mul_ps(x.lanes, power(half));
    return {_mm256_mul_ps(part, power(_mm256_sub_epi32(exponents, half)))};
  }
  // Keeps to -160 … 160; what is no number stays none.
  static FloatVector clamp(FloatVector x) {
    return {_mm256_min_ps(_mm256_set1_ps(160), _mm256_max_ps(_mm256_set1_ps(-160), x.lanes))};
  }
  // The nearest integer of x kept to -160 … 160 in `whole`; returns the rest, -1/2 … 1/2.
  static FloatVector split(FloatVector x, FloatVector& whole) {
    const FloatVector kept = clamp(x);
    whole = round(kept);
    return kept - whole;
  }

  // Swaps rows and columns.
  static void transpose(FloatVector (&rows)[kLanes]) {
    __m256 pairs[8];
    for (int i = 0; i < 8; i += 2) {
      pairs[i] = _mm256_unpacklo_ps(rows[i].lanes, rows[i + 1].lanes);
      pairs[i + 1] = _mm256_unpackhi_ps(rows[i].lanes, rows[i + 1].lanes);
    }
    __m256 fours[8];  // [4 g + c]: column c of each 128-bit lane, of rows 4 g to 4 g + 3
    for (int g = 0; g < 2; ++g) {
      for (int half = 0; half < 2; ++half) {
        const __m256d low = _mm256_castps_pd(pairs[4 * g + half]);
        const __m256d high = _mm256_castps_pd(pairs[4 * g + 2 + half]);
        fours[4 * g + 2 * half] = _mm256_castpd_ps(_mm256_unpacklo_pd(low, high));
        fours[4 * g + 2 * half + 1] = _mm256_castpd_ps(_mm256_unpackhi_pd(low, high));
      }
    }
    for (int c = 0; c < 4; ++c) {
      rows[c].lanes = _mm256_permute2f128_ps(fours[c], fours[4 + c], 0x20);
      rows[4 + c].lanes = _mm256_permute2f128_ps(fours[c], fours[4 + c], 0x31);
    }
  }

 private:
  static __m256i first(int count) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(count), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }
  static FloatVector widen(__m128i halves) {
    return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16))};
  }
  static __m256 power(__m256i n) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
  }
  // To the nearest bfloat16, the even one of two; what is no number stays none.
  __m128i narrow() const {
    const __m256i bits = _mm256_castps_si256(lanes);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i sum = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF)));
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    const __m256 is_nan = _mm256_cmp_ps(lanes, lanes, _CMP_UNORD_Q);
    const __m256i rounded =
        _mm256_srli_epi32(_mm256_blendv_epi8(sum, quiet, _mm256_castps_si256(is_nan)), 16);
    const __m256i packed = _mm256_packus_epi32(rounded, rounded);
    return _mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0x08));
  }
};

inline FloatVector exp2(FloatVector x) { return exponential::exp2(x); }
inline FloatVector exp(FloatVector x) { return exponential::exp(x); }
inline FloatVector silu(FloatVector x) { return exponential::silu(x); }

}  // namespace antiphon::kernels::avx2
