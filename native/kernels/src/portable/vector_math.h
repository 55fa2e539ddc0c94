#pragma once

#include <cstdint>
#include <cstring>

#include "../bfloat16.h"
#include "../exponential.h"

namespace antiphon::kernels::portable {

// A few floats at once, in what any machine has. Same interface as those of the instruction sets.
struct FloatVector {
  using Lanes = float __attribute__((vector_size(16)));
  using Integers = std::int32_t __attribute__((vector_size(16)));
  static constexpr int kLanes = 4;
  static constexpr int kTileRows = 4;     // of a product held in registers,
  static constexpr int kTileVectors = 2;  // and vectors of each

  Lanes lanes;

  static FloatVector set(float value) { return {Lanes{value, value, value, value}}; }
  static FloatVector load(const float* from) {
    FloatVector result;
    std::memcpy(&result.lanes, from, sizeof(result.lanes));
    return result;
  }
  // The first `count` of them, zeros behind.
  static FloatVector load_first(const float* from, std::int64_t count) {
    if (count == kLanes) {
      return load(from);
    }
    FloatVector result = set(0);
    std::memcpy(&result.lanes, from, static_cast<std::size_t>(count) * sizeof(float));
    return result;
  }
  static FloatVector load_bf16(const std::uint16_t* from) {
    return {Lanes{from_bf16(from[0]), from_bf16(from[1]), from_bf16(from[2]), from_bf16(from[3])}};
  }
  static FloatVector load_bf16_first(const std::uint16_t* from, std::int64_t count) {
    if (count == kLanes) {
      return load_bf16(from);
    }
    FloatVector result = set(0);
    for (std::int64_t i = 0; i < count; ++i) {
      result.lanes[i] = from_bf16(from[i]);
    }
    return result;
  }
  void store(float* to) const { std::memcpy(to, &lanes, sizeof(lanes)); }
  void store_first(float* to, std::int64_t count) const {
    if (count == kLanes) {
      store(to);
      return;
    }
    std::memcpy(to, &lanes, static_cast<std::size_t>(count) * sizeof(float));
  }
  void store_bf16_first(std::uint16_t* to, std::int64_t count) const {
    for (std::int64_t i = 0; i < count; ++i) {
      to[i] = to_bf16(lanes[i]);
    }
  }
  void store_bf16(std::uint16_t* to) const { store_bf16_first(to, kLanes); }

  friend FloatVector operator+(FloatVector a, FloatVector b) { return {a.lanes + b.lanes}; }
  friend FloatVector operator-(FloatVector a, FloatVector b) { return {a.lanes - b.lanes}; }
  friend FloatVector operator*(FloatVector a, FloatVector b) { return {a.lanes * b.lanes}; }
  friend FloatVector operator/(FloatVector a, FloatVector b) { return {a.lanes / b.lanes}; }
  static FloatVector fma(FloatVector a, FloatVector b, FloatVector c) {
    return {a.lanes * b.lanes + c.lanes};
  }
  // `b` where one of them is no number.
  static FloatVector max(FloatVector a, FloatVector b) {
    return {a.lanes > b.lanes ? a.lanes : b.lanes};
  }
  // `inside` in the lanes `first` to `last` - 1, `outside` in all others.
  static FloatVector select(int first, int last, FloatVector inside, FloatVector outside) {
    const Integers places = {0, 1, 2, 3};
    return {(places >= first) & (places < last) ? inside.lanes : outside.lanes};
  }
  float sum() const { return (lanes[0] + lanes[2]) + (lanes[1] + lanes[3]); }
  float largest() const {
    const float a = lanes[0] > lanes[2] ? lanes[0] : lanes[2];
    const float b = lanes[1] > lanes[3] ? lanes[1] : lanes[3];
    return a > b ? a : b;
  }

  // The nearest integers, for magnitudes below 2^22.
  static FloatVector round(FloatVector x) {
    const Lanes shift = set(12582912.0F).lanes;  // 1.5 * 2^23
    return {(x.lanes + shift) - shift};
  }
  // x * 2^n for integers n from -250 to 250.
  static FloatVector scale(FloatVector x, FloatVector n) {
    const Integers exponents = __builtin_convertvector(n.lanes, Integers);
    const Integers half = exponents >> 1;
    return {x.lanes * power(half) * power(exponents - half)};
  }
  // Keeps to -160 … 160; what is no number stays none.
  static FloatVector clamp(FloatVector x) {
    const Lanes low = set(-160).lanes;
    const Lanes high = set(160).lanes;
    const Lanes above = x.lanes < low ? low : x.lanes;
    return {above > high ? high : above};
  }

  // The nearest integer of x kept to -160 … 160 in `whole`; returns the rest, -1/2 … 1/2.
  static FloatVector split(FloatVector x, FloatVector& whole) {
    const FloatVector kept = clamp(x);
    whole = round(kept);
    return kept - whole;
  }

  // Swaps rows and columns.
  static void transpose(FloatVector (&rows)[kLanes]) {
    for (int i = 0; i < kLanes; ++i) {
      for (int j = 0; j < i; ++j) {
        const float above = rows[j].lanes[i];
        rows[j].lanes[i] = rows[i].lanes[j];
        rows[i].lanes[j] = above;
      }
    }
  }

 private:
  static Lanes power(Integers n) {
    const Integers bits = (n + 127) << 23;
    Lanes result;
    std::memcpy(&result, &bits, sizeof(result));
    return result;
  }
};

inline FloatVector exp2(FloatVector x) { return exponential::exp2(x); }
inline FloatVector exp(FloatVector x) { return exponential::exp(x); }
inline FloatVector silu(FloatVector x) { return exponential::silu(x); }

}  // namespace antiphon::kernels::portable
