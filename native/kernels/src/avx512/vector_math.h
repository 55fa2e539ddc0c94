// For sources compiled for AVX-512 only.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "../exponential.h"

namespace antiphon::kernels::avx512 {

// 16 floats at once.
struct FloatVector {
  static constexpr int kLanes = 16;
  static constexpr int kTileRows = 6;     // of a product held in registers,
  static constexpr int kTileVectors = 4;  // and vectors of each

  __m512 lanes;

  static FloatVector set(float value) { return {_mm512_set1_ps(value)}; }
  static FloatVector load(const float* from) { return {_mm512_loadu_ps(from)}; }
  // The first `count` of them, zeros behind.
  static FloatVector load_first(const float* from, std::int64_t count) {
    return {_mm512_maskz_loadu_ps(first(count), from)};
  }
  static FloatVector load_bf16(const std::uint16_t* from) {
    return widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  }
  static FloatVector load_bf16_first(const std::uint16_t* from, std::int64_t count) {
    return widen(_mm256_maskz_loadu_epi16(first(count), from));
  }
  void store(float* to) const { _mm512_storeu_ps(to, lanes); }
  void store_first(float* to, std::int64_t count) const {
    _mm512_mask_storeu_ps(to, first(count), lanes);
  }
  void store_bf16(std::uint16_t* to) const {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), narrow());
  }
  void store_bf16_first(std::uint16_t* to, std::int64_t count) const {
    _mm256_mask_storeu_epi16(to, first(count), narrow());
  }

  friend FloatVector operator+(FloatVector a, FloatVector b) {
    return {_mm512_add_ps(a.lanes, b.lanes)};
  }
  friend FloatVector operator-(FloatVector a, FloatVector b) {
    return {_mm512_sub_ps(a.lanes, b.lanes)};
  }
  friend FloatVector operator*(FloatVector a, FloatVector b) {
    return {_mm512_mul_ps(a.lanes, b.lanes)};
  }
  friend FloatVector operator/(FloatVector a, FloatVector b) {
    return {_mm512_div_ps(a.lanes, b.lanes)};
  }
  static FloatVector fma(FloatVector a, FloatVector b, FloatVector c) {
    return {_mm512_fmadd_ps(a.lanes, b.lanes, c.lanes)};
  }
  // `b` where one of them is no number.
  static FloatVector max(FloatVector a, FloatVector b) { return {_mm512_max_ps(a.lanes, b.lanes)}; }
  // `inside` in the lanes `first_lane` to `last_lane` - 1, `outside` in all others.
  static FloatVector select(int first_lane, int last_lane, FloatVector inside,
                            FloatVector outside) {
    const auto mask =
        static_cast<__mmask16>(first(clamp_lane(last_lane)) & ~first(clamp_lane(first_lane)));
    return {_mm512_mask_blend_ps(mask, outside.lanes, inside.lanes)};
  }
  float sum() const { return _mm512_reduce_add_ps(lanes); }
  float largest() const { return _mm512_reduce_max_ps(lanes); }

  static FloatVector round(FloatVector x) { return {_mm512_roundscale_ps(x.lanes, 0)}; }
  static FloatVector scale(FloatVector x, FloatVector n) {
    return {_mm512_scalef_ps(x.lanes, n.lanes)};
  }
  // Keeps to -160 … 160; what is no number stays none.
  static FloatVector clamp(FloatVector x) {
    return {_mm512_min_ps(_mm512_set1_ps(160), _mm512_max_ps(_mm512_set1_ps(-160), x.lanes))};
  }
  // The nearest integer of x in `whole`; returns the rest, -1/2 … 1/2, of infinities 0.
  static FloatVector split(FloatVector x, FloatVector& whole) {
    const FloatVector rest = {_mm512_reduce_ps(x.lanes, 0)};
    whole = x - rest;
    return rest;
  }

  // Swaps rows and columns.
  static void transpose(FloatVector (&rows)[kLanes]) {
    __m512 pairs[16];
    for (int i = 0; i < 16; i += 2) {
      pairs[i] = _mm512_unpacklo_ps(rows[i].lanes, rows[i + 1].lanes);
      pairs[i + 1] = _mm512_unpackhi_ps(rows[i].lanes, rows[i + 1].lanes);
    }
    __m512 fours[16];  // [4 g + c]: column c of each 128-bit lane, of rows 4 g to 4 g + 3
    for (int g = 0; g < 4; ++g) {
      for (int half = 0; half < 2; ++half) {
        const __m512d low = _mm512_castps_pd(pairs[4 * g + half]);
        const __m512d high = _mm512_castps_pd(pairs[4 * g + 2 + half]);
        fours[4 * g + 2 * half] = _mm512_castpd_ps(_mm512_unpacklo_pd(low, high));
        fours[4 * g + 2 * half + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(low, high));
      }
    }
    for (int c = 0; c < 4; ++c) {
      const __m512 low02 = _mm512_shuffle_f32x4(fours[c], fours[4 + c], 0x88);
      const __m512 low13 = _mm512_shuffle_f32x4(fours[c], fours[4 + c], 0xDD);
      const __m512 high02 = _mm512_shuffle_f32x4(fours[8 + c], fours[12 + c], 0x88);
      const __m512 high13 = _mm512_shuffle_f32x4(fours[8 + c], fours[12 + c], 0xDD);
      rows[c].lanes = _mm512_shuffle_f32x4(low02, high02, 0x88);
      rows[8 + c].lanes = _mm512_shuffle_f32x4(low02, high02, 0xDD);
      rows[4 + c].lanes = _mm512_shuffle_f32x4(low13, high13, 0x88);
      rows[12 + c].lanes = _mm512_shuffle_f32x4(low13, high13, 0xDD);
    }
  }

 private:
  static __mmask16 first(std::int64_t count) {
    return static_cast<__mmask16>((1U << static_cast<unsigned>(count)) - 1U);
  }
  static int clamp_lane(int lane) { return lane < 0 ? 0 : (lane > kLanes ? kLanes : lane); }
  static FloatVector widen(__m256i halves) {
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16))};
  }
  // To the nearest bfloat16, the even one of two; what is no number stays none.
  __m256i narrow() const {
    const __m512i bits = _mm512_castps_si512(lanes);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i sum = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF)));
    const __mmask16 is_nan = _mm512_cmp_ps_mask(lanes, lanes, _CMP_UNORD_Q);
    const __m512i rounded = _mm512_mask_or_epi32(sum, is_nan, bits, _mm512_set1_epi32(0x400000));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16));
  }
};

inline FloatVector exp2(FloatVector x) { return exponential::exp2(x); }
inline FloatVector exp(FloatVector x) { return exponential::exp(x); }
inline FloatVector silu(FloatVector x) { return exponential::silu(x); }

}  // namespace antiphon::kernels::avx512
