// The end of a product, in plain loops over 16 outputs, which compilers turn into the instructions
// that the including source may use. So each source has its own, in an unnamed namespace.
#pragma once

#include <cstring>

#include "bfloat16.h"
#include "product_kernels.h"

namespace antiphon::kernels {
namespace {

constexpr int kLanes = kPanel;

void write_columns(const Finish& finish, const float* values, std::int64_t row, int first,
                   int count) {
  const std::int64_t offset = row * finish.stride + first;
  if (finish.type == Type::kF32) {
    auto* const out = reinterpret_cast<float*>(finish.out) + offset;
    if (finish.epilogue == Epilogue::kAdd) {
      for (int i = 0; i < count; ++i) {
        out[i] += values[i];
      }
    } else {
      std::memcpy(out, values, static_cast<std::size_t>(count) * sizeof(float));
    }
    return;
  }
  std::uint16_t rounded[kLanes];
  for (int i = 0; i < kLanes; ++i) {
    rounded[i] = to_bf16(values[i]);
  }
  std::memcpy(reinterpret_cast<std::uint16_t*>(finish.out) + offset, rounded,
              static_cast<std::size_t>(count) * sizeof(std::uint16_t));
}

// A row's outputs of one panel.
void add_bias(const Finish& finish, std::int64_t row, int half, float* values) {
  const float* const sums = finish.sums + row * kPair + half * kLanes;
  const float* const bias = finish.bias + half * kLanes;
  for (int i = 0; i < kLanes; ++i) {
    values[i] = sums[i] + bias[i];
  }
}

// `silu` turns 16 floats x into x / (1 + exp(-x)), in place.
template <class Silu>
void finish_rows(const Finish& finish, Silu silu) {
  for (std::int64_t row = 0; row < finish.num_rows; ++row) {
    alignas(64) float values[kLanes];
    if (finish.epilogue == Epilogue::kSiluMul) {
      alignas(64) float ups[kLanes];
      add_bias(finish, row, 0, values);
      add_bias(finish, row, 1, ups);
      silu(values);
      for (int i = 0; i < kLanes; ++i) {
        values[i] *= ups[i];
      }
      write_columns(finish, values, row, 0, finish.num_columns);
      continue;
    }
    for (int half = 0; half * kLanes < finish.num_columns; ++half) {
      const int left = finish.num_columns - half * kLanes;
      add_bias(finish, row, half, values);
      write_columns(finish, values, row, half * kLanes, left < kLanes ? left : kLanes);
    }
  }
}

}  // namespace
}  // namespace antiphon::kernels
