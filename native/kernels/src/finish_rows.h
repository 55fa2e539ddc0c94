// The end of a product, for the vectors of any instruction set.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "product_kernels.h"

namespace antiphon::kernels::finishing {

// Writes the first `count` lanes of `values`, all or some of them.
template <class Vector>
void write(const Finish& finish, std::int64_t offset, Vector values, std::int64_t count) {
  if (finish.type == Type::kBf16) {
    auto* const out = reinterpret_cast<std::uint16_t*>(finish.out) + offset;
    if (count == Vector::kLanes) {
      values.store_bf16(out);
    } else {
      values.store_bf16_first(out, count);
    }
    return;
  }
  auto* const out = reinterpret_cast<float*>(finish.out) + offset;
  const bool adds = finish.epilogue == Epilogue::kAdd;
  if (count == Vector::kLanes) {
    (adds ? Vector::load(out) + values : values).store(out);
  } else {
    (adds ? Vector::load_first(out, count) + values : values).store_first(out, count);
  }
}

template <class Vector>
void finish_rows(const Finish& finish) {
  constexpr std::int64_t kRowsAhead = 8;
  const std::int64_t element = finish.type == Type::kBf16 ? 2 : 4;
  const bool gated = finish.epilogue == Epilogue::kSiluMul;
  for (std::int64_t row = 0; row < finish.num_rows; ++row) {
    const float* const sums = finish.sums + row * kPair;
    // Rows lie far apart: their lines are asked for before they are written.
    const std::byte* const ahead =
        finish.out + std::min(row + kRowsAhead, finish.num_rows - 1) * finish.stride * element;
    for (std::int64_t at = 0; at < finish.num_columns * element; at += 64) {
      __builtin_prefetch(ahead + at, 1);
    }
    for (int i = 0; i < finish.num_columns; i += Vector::kLanes) {
      Vector values = Vector::load(sums + i) + Vector::load(finish.bias + i);
      if (gated) {
        const int up = kPanel + i;
        values = silu(values) * (Vector::load(sums + up) + Vector::load(finish.bias + up));
      }
      write(finish, row * finish.stride + i, values,
            std::min<std::int64_t>(Vector::kLanes, finish.num_columns - i));
    }
  }
}

}  // namespace antiphon::kernels::finishing
