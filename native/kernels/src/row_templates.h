// The bodies of RowKernels, for the vectors of any instruction set.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "exponential.h"
#include "row_kernels.h"

namespace antiphon::kernels::row_templates {

// Stores `count` lanes behind element `place` of `out`.
template <class Vector>
void store_first(Vector value, void* out, Type type, std::int64_t place, std::int64_t count) {
  if (type == Type::kF32) {
    value.store_first(static_cast<float*>(out) + place, count);
  } else {
    value.store_bf16_first(static_cast<std::uint16_t*>(out) + place, count);
  }
}

// Calls `body(place, count)` for each vector of `size` elements.
template <class Vector, class Body>
void for_each_vector(std::int64_t size, Body body) {
  std::int64_t place = 0;
  for (; place + Vector::kLanes <= size; place += Vector::kLanes) {
    body(place, std::int64_t{Vector::kLanes});
  }
  if (place < size) {
    body(place, size - place);
  }
}

template <class Vector>
void rms_norm(const float* in, const float* weight, std::int64_t size, float epsilon, void* out,
              Type type) {
  Vector squares = Vector::set(0.0F);
  for_each_vector<Vector>(size, [&](std::int64_t place, std::int64_t count) {
    const Vector x = Vector::load_first(in + place, count);
    squares = Vector::fma(x, x, squares);
  });
  const float mean = squares.sum() / static_cast<float>(size);
  const Vector factor = Vector::set(1.0F / std::sqrt(mean + epsilon));
  for_each_vector<Vector>(size, [&](std::int64_t place, std::int64_t count) {
    const Vector x = Vector::load_first(in + place, count) * factor;
    store_first(x * Vector::load_first(weight + place, count), out, type, place, count);
  });
}

template <class Vector>
void rotate(const float* head, const float* cos, const float* sin, std::int64_t half, void* out,
            Type type) {
  for_each_vector<Vector>(half, [&](std::int64_t place, std::int64_t count) {
    const Vector first = Vector::load_first(head + place, count);
    const Vector second = Vector::load_first(head + half + place, count);
    const Vector c = Vector::load_first(cos + place, count);
    const Vector s = Vector::load_first(sin + place, count);
    store_first(first * c - second * s, out, type, place, count);
    store_first(second * c + first * s, out, type, half + place, count);
  });
}

template <class Vector>
void copy(const float* in, std::int64_t size, void* out, Type type) {
  for_each_vector<Vector>(size, [&](std::int64_t place, std::int64_t count) {
    store_first(Vector::load_first(in + place, count), out, type, place, count);
  });
}

template <class Vector>
float largest(const float* values, std::int64_t size) {
  constexpr float kLeast = -std::numeric_limits<float>::infinity();
  const Vector zero = Vector::set(0.0F);
  Vector found = Vector::set(kLeast);
  Vector zeros = zero;  // as long as all are finite
  std::int64_t place = 0;
  for (; place + Vector::kLanes <= size; place += Vector::kLanes) {
    const Vector x = Vector::load(values + place);
    found = Vector::max(x, found);
    zeros = Vector::fma(x, zero, zeros);
  }
  float result = found.largest();
  float rest = zeros.sum();
  for (; place < size; ++place) {
    result = values[place] > result ? values[place] : result;
    rest += values[place] * 0.0F;
  }
  return result + rest;
}

template <class Vector>
void weigh(const float* in, std::int64_t size, float largest, float divisor, float* out) {
  const Vector most = Vector::set(largest);
  const Vector by = Vector::set(divisor);
  for_each_vector<Vector>(size, [&](std::int64_t place, std::int64_t count) {
    const Vector x = Vector::load_first(in + place, count);
    exponential::exp((x - most) / by).store_first(out + place, count);
  });
}

template <class Vector>
constexpr RowKernels kKernels = {rms_norm<Vector>, rotate<Vector>, copy<Vector>, largest<Vector>,
                                 weigh<Vector>};

}  // namespace antiphon::kernels::row_templates
