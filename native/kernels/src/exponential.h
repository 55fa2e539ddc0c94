// Exponentials of vectors, written once for the vectors of all instruction sets.
#pragma once

namespace antiphon::kernels::exponential {

// A polynomial in `r` by Horner's rule, the highest coefficient first.
template <class Vector, int kCount>
Vector polynomial(Vector r, const float (&coefficients)[kCount]) {
  Vector result = Vector::set(coefficients[0]);
  for (int i = 1; i < kCount; ++i) {
    result = Vector::fma(result, r, Vector::set(coefficients[i]));
  }
  return result;
}

// 2^x within 2 units in the last place. 1 for 0 exactly, 0 from -160 down, infinite from 128 up;
// what is no number stays none.
template <class Vector>
Vector exp2(Vector x) {
  // Least relative error of degree 5 with 1 at 0, on -1/2 … 1/2.
  constexpr float kCoefficients[] = {1.3264727197e-3F, 9.6715126397e-3F, 5.5507337433e-2F,
                                     2.4022242085e-1F, 6.9314697760e-1F, 1.0F};
  Vector n;
  const Vector fraction = Vector::split(x, n);
  return Vector::scale(polynomial(fraction, kCoefficients), n);
}

// e^x within 2 units in the last place; 0 from -104 down, infinite from 89 up.
template <class Vector>
Vector exp(Vector x) {
  constexpr float kCoefficients[] = {1.3843653541e-3F,
                                     8.3741553058e-3F,
                                     4.1668002035e-2F,
                                     1.6666431263e-1F,
                                     4.9999994209e-1F,
                                     1.0F,
                                     1.0F};
  const Vector kept = Vector::clamp(x);
  const Vector n = Vector::round(kept * Vector::set(1.44269504F));
  // ln 2 in two parts, the first of few bits, so that n times it is exact.
  const Vector high = Vector::fma(n, Vector::set(-0.693359375F), kept);
  const Vector r = Vector::fma(n, Vector::set(2.12194440e-4F), high);
  return Vector::scale(polynomial(r, kCoefficients), n);
}

// x / (1 + e^-x).
template <class Vector>
Vector silu(Vector x) {
  const Vector one = Vector::set(1.0F);
  return x / (one + exp(Vector::set(0.0F) - x));
}

}  // namespace antiphon::kernels::exponential
