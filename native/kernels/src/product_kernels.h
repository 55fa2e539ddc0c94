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

inline constexpr std::int64_t kFewRows = 32;  // what products keep in registers

// Rows, brought into the form in which products read them that take arranged ones.
struct Arranging {
  const void* rows;  // whole slices wide
  Type type;         // the kernels' input type, unless they arrange any
  std::int64_t row_stride;
  std::int64_t num_rows;
  std::int64_t num_slices;
  void* arranged;  // written: `arranged_bytes` for each slice of each of `arranged_rows`
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
  // Both at once, where there is such a one: for up to `most_rows_at_once` rows that `arrange` has
  // arranged. Of `tiles` it writes as many as it needs, at least those of four slices. Where that
  // is for few rows only, it takes all slices of a pair, and `sums` are written. Where it isn't,
  // `row_stride` counts slices.
  std::array<void (*)(const Unpacking&, const Product&), 6> unpack_and_multiply = {};
  void (*arrange)(const Arranging&) = nullptr;
  std::int64_t most_rows_at_once = kFewRows;
  std::int64_t arranged_bytes = 2 * kSlice;
  bool arranges_any_type = false;
  // So many rows of a pair could be multiplied while its weights come, where nothing unpacks them
  // into a near cache beforehand.
  std::int64_t rows_of_fetching = 4;
};

// What is arranged; of few rows, zeros may stand behind the last.
constexpr std::int64_t arranged_rows(std::int64_t num_rows) {
  return num_rows > kFewRows
             ? num_rows
             : static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(num_rows)));
}

// Those that a matrix of this format takes on `isa`.
const ProductKernels& product_kernels(Isa isa, WeightFormat format);

const ProductKernels& portable_kernels();
#ifdef ANTIPHON_KERNELS_X86
const ProductKernels& avx2_kernels();
const ProductKernels& avx_vnni_kernels();  // of integers only
const ProductKernels& avx512_kernels();
const ProductKernels& avx512_vnni_kernels();  // of integers only
const ProductKernels& avx512_bf16_kernels();
const ProductKernels& amx_kernels();
#endif

}  // namespace antiphon::kernels
