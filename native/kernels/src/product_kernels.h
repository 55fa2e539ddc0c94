// What each instruction set does its own way.
//
// The driver in linear.cc brings weights into tiles, multiplies rows with them, sums in memory, and
// finishes a pair's 32 outputs at the end. Order of sums: along the inputs, slice after slice, each
// the same way for any number of rows; so how the driver cuts rows and slices changes no bit.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "antiphon/kernels/activations.h"
#include "antiphon/kernels/linear.h"
#include "antiphon/kernels/packed_matrix.h"
#include "tile_layout.h"

namespace antiphon::kernels {

// Up to kFewRows rows, brought into the order in which products of few rows read them.
struct Arranging {
  const void* rows;  // of the kernels' input type, whole slices wide
  std::int64_t row_stride;
  std::int64_t num_rows;
  std::int64_t num_slices;
  void* arranged;  // written: num_slices * kSlice values for each of `arranged_rows`
};

// What will be read next: asked of memory while this is computed.
struct Upcoming {
  const std::byte* first = nullptr;
  std::int64_t num_bytes = 0;
};

struct Unpacking {
  const std::byte* blocks;  // one a slice
  std::int64_t num_slices;
  const float* row_scales;  // [32]
  void* tiles;              // written: [num_slices, 2, 32, 16]
  Upcoming upcoming;
};

struct Product {
  const void* rows;  // of the kernels' input type, whole slices wide
  std::int64_t row_stride;
  std::int64_t num_rows;
  const std::byte* tiles;  // [num_slices, 2, 32, 16] of the same type
  std::int64_t num_slices;
  float* sums;     // [num_rows, 32]
  bool continues;  // adds to `sums`, else writes them
  Upcoming upcoming;
};

// 32 outputs of rows, of a pair.
struct Finish {
  const float* sums;  // [num_rows, 32]
  std::int64_t num_rows;
  const float* bias;  // [32]
  Epilogue epilogue;
  std::byte* out;  // the first row's first of these outputs
  Type type;
  std::int64_t stride;
  int num_columns;  // to write: up to 32, or 16 with kSiluMul
};

struct ProductKernels {
  Type input_type;
  // By format; null where products read the blocks as they are.
  std::array<void (*)(const Unpacking&), 6> unpack;
  void (*multiply)(const Product&);
  void (*finish)(const Finish&);
  // Around a worker's share of an op, in which all products have up to `num_rows` rows.
  void (*begin)(std::int64_t num_rows);
  void (*end)();
  // How integers lie that `unpack` reads.
  IntegerLayout layout = IntegerLayout::kLanesAreOutputs;
  // Both at once, where there is such a one: for up to kFewRows rows that `arrange` has arranged,
  // all slices of a pair. Of `tiles` it writes as many as it needs, at least those of four slices;
  // `sums` are written.
  std::array<void (*)(const Unpacking&, const Product&), 6> unpack_and_multiply = {};
  void (*arrange)(const Arranging&) = nullptr;
};

inline constexpr std::int64_t kFewRows = 32;  // what products keep in registers

// What is arranged of few rows, zeros behind the last.
constexpr std::int64_t arranged_rows(std::int64_t num_rows) {
  return static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(num_rows)));
}

// Those that a matrix of this format takes on `isa`.
const ProductKernels& product_kernels(Isa isa, WeightFormat format);

const ProductKernels& portable_kernels();
#ifdef ANTIPHON_KERNELS_X86
const ProductKernels& avx2_kernels();
const ProductKernels& avx512_kernels();
const ProductKernels& avx512_bf16_kernels();
const ProductKernels& amx_kernels();
#endif

}  // namespace antiphon::kernels
