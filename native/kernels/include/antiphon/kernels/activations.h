// Where the rows of a step lie. Nothing here owns memory.
#pragma once

#include <cstdint>

namespace antiphon::kernels {

enum class Type : int { kF32 = 0, kBf16 = 1 };

constexpr std::int64_t element_bytes(Type type) { return type == Type::kF32 ? 4 : 2; }

// Rows that are read. Row r starts `r * stride` elements behind `data`.
struct Rows {
  const void* data;
  Type type;
  std::int64_t num_rows;
  std::int64_t stride;
};

// Where rows are written, as many as were read.
struct RowsOut {
  void* data;
  Type type;
  std::int64_t stride;
};

}  // namespace antiphon::kernels
