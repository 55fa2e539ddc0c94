// Weights in the order in which products read them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "antiphon/kernels/activations.h"
#include "antiphon/kernels/cpu_features.h"

namespace antiphon::kernels {

struct QuantizedSlice;
enum class IntegerLayout : int;

// Gives mapped memory back.
struct Unmap {
  std::size_t num_bytes;
  void operator()(std::byte* bytes) const;
};

// How weights are kept. The integers have scales along the inputs: one for 32 (kInt6: for 16), and
// kInt5 and kInt4 an offset as well.
enum class WeightFormat : int { kF32 = 0, kBf16 = 1, kInt8 = 2, kInt6 = 3, kInt5 = 4, kInt4 = 5 };

// Which rows are multiplied together. kGateUp: the first half of the rows are gates, and row j is
// paired with row j of the second half, so that a worker has both for SiLU(gate) * up.
enum class RowOrder : int { kPlain = 0, kGateUp = 1 };

// Blocks of GGUF files, by the file format's numbers.
enum class GgufType : int { kQ4_0 = 2, kQ5_0 = 6, kQ8_0 = 8, kQ4_K = 12, kQ5_K = 13, kQ6_K = 14 };

// The format that keeps such blocks without a loss that bfloat16 could tell.
WeightFormat gguf_format(GgufType type);

// The bytes of a row of `num_in` weights. Throws std::invalid_argument where blocks don't fill it.
std::size_t gguf_row_bytes(GgufType type, std::int64_t num_in);

// A matrix [num_out, num_in]. Outputs lie in pairs of panels of 16, inputs in slices of 32: the two
// tiles of a pair and a slice lie side by side, so a pair is one stream of memory. What is missing
// to whole pairs and slices is zeros.
//
// Rows may be packed in any order and from sources of different kinds, and by several threads at
// once if they are rows of different panels. Rows that were never packed are zeros. A block of
// integers that would have to hold an infinity or no number is no number as a whole.
class PackedMatrix {
 public:
  // `isa` is what products with it will use.
  // Throws std::invalid_argument where a size is below 1, kGateUp has an odd `num_out`, or the
  // machine lacks `isa`; std::bad_alloc.
  PackedMatrix(std::int64_t num_out, std::int64_t num_in, WeightFormat format,
               RowOrder order = RowOrder::kPlain, Isa isa = best_isa());

  // What a matrix of this shape will take.
  static std::size_t packed_bytes(std::int64_t num_out, std::int64_t num_in, WeightFormat format,
                                  RowOrder order = RowOrder::kPlain);

  // Take rows [num_rows, num_in] that lie one after the other. They are quantized where the format
  // says so; kBf16 rounds. Throw std::invalid_argument where there are no such rows.
  void pack_f32(std::int64_t first_row, std::int64_t num_rows, const float* rows);
  void pack_bf16(std::int64_t first_row, std::int64_t num_rows, const std::uint16_t* rows);
  // Keeps the blocks' integers where the format is theirs, else expands them and packs that.
  void pack_gguf(std::int64_t first_row, std::int64_t num_rows, GgufType type,
                 const std::byte* rows);

  // Writes a row's `num_in` weights as products see them.
  void unpack_row(std::int64_t row, float* out) const;

  std::int64_t num_out() const { return num_out_; }
  std::int64_t num_in() const { return num_in_; }
  WeightFormat format() const { return format_; }
  RowOrder order() const { return order_; }
  Isa isa() const { return isa_; }
  std::size_t num_bytes() const { return num_bytes_; }

  // All that a matrix is made of beside its shape, format and instruction set: what is read back
  // from where these were written makes the same matrix.
  std::span<std::byte> bytes() { return {bytes_.get(), num_bytes_}; }
  std::span<float> row_scales() { return row_scales_; }

  // The type of the rows that products take as they are; others they convert.
  Type input_type() const;

  // For products:
  std::int64_t num_pairs() const { return num_pairs_; }
  std::int64_t num_slices() const { return num_slices_; }
  std::size_t block_bytes() const { return block_bytes_; }  // two tiles
  const std::byte* pair(std::int64_t pair) const { return bytes_.get() + pair * pair_bytes(); }
  // By what the scales of a pair's 32 outputs are to be multiplied; powers of two.
  const float* row_scales(std::int64_t pair) const { return &row_scales_[pair * 32]; }

 private:
  struct Place {
    std::int64_t pair;
    int half;
    int channel;
  };

  std::size_t pair_bytes() const { return static_cast<std::size_t>(num_slices_) * block_bytes_; }
  IntegerLayout layout() const;
  Place place_of(std::int64_t row) const;
  void check_rows(std::int64_t first_row, std::int64_t num_rows) const;
  void pack_row(std::int64_t row, const float* weights);
  void pack_bf16_row(std::int64_t row, const std::uint16_t* weights);
  void pack_slices(std::int64_t row, const std::vector<QuantizedSlice>& slices);

  std::int64_t num_out_;
  std::int64_t num_in_;
  WeightFormat format_;
  RowOrder order_;
  Isa isa_;
  std::int64_t num_pairs_;
  std::int64_t num_slices_;
  std::size_t block_bytes_;
  std::size_t num_bytes_;
  std::unique_ptr<std::byte, Unmap> bytes_;
  std::vector<float> row_scales_;
};

}  // namespace antiphon::kernels
