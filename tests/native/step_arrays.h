// Owns the arrays of one step and reads them back. Each array is as large as it must be and no
// larger, so that the address sanitizer sees a write beyond it.
#pragma once

#include <cstdint>
#include <vector>

#include "antiphon/batch_plan.h"

namespace antiphon {

class StepArrays {
 public:
  StepArrays(std::int32_t num_rows, std::int32_t num_tokens, std::int32_t num_table_deltas,
             std::int32_t num_copies = 0) {
    const auto rows = static_cast<std::size_t>(num_rows);
    const auto tokens = static_cast<std::size_t>(num_tokens);
    out_.header = Int32(kHeaderSize);
    handles_.resize(rows);
    out_.handle = handles_.data();
    epochs_.resize(rows);
    out_.epoch = epochs_.data();
    flags_.resize(rows);
    out_.flags = flags_.data();
    uniforms_.resize(rows);
    out_.uniform = uniforms_.data();
    slot_mapping_.resize(tokens);
    out_.slot_mapping = slot_mapping_.data();
    out_.slot = Int32(rows);
    out_.adapter = Int32(rows);
    out_.q_len = Int32(rows);
    out_.cu_q = Int32(rows + 1);
    out_.ctx_len = Int32(rows);
    out_.kv_len = Int32(rows);
    out_.reused_tokens = Int32(rows);
    out_.output_position = Int32(rows);
    out_.sample_indptr = Int32(rows + 1);
    out_.sample_rows = Int32(rows);
    out_.input_ids = Int32(tokens);
    out_.gather_slot = Int32(tokens);
    out_.positions = Int32(tokens);
    out_.table_delta = Int32(static_cast<std::size_t>(num_table_deltas) * kTableDeltaColumns);
    out_.copy_ops = Int32(static_cast<std::size_t>(num_copies) * kCopyColumns);
    out_.slot_init = Int32(rows);
    out_.tokens = Int32(rows);
    out_.num_tokens = Int32(rows);
    out_.result = Int32(rows * kResultColumns);
    out_.max_table_deltas = num_table_deltas;
    out_.max_copies = num_copies;
  }

  const StepBuffers& buffers() const { return out_; }
  std::int32_t header(HeaderField field) const { return out_.header[field]; }

  // Gives every row this token, as an executor would.
  void Sample(TokenId token) {
    for (std::size_t row = 0; row < handles_.size(); ++row) {
      out_.tokens[row] = token;
      out_.num_tokens[row] = 1;
    }
  }

  std::vector<std::int32_t> result(std::size_t row) const {
    const std::int32_t* first = out_.result + row * kResultColumns;
    return {first, first + kResultColumns};
  }

 private:
  std::int32_t* Int32(std::size_t size) {
    arrays_.emplace_back(size);
    return arrays_.back().data();
  }

  StepBuffers out_;
  std::vector<std::vector<std::int32_t>> arrays_;
  std::vector<std::uint64_t> handles_;
  std::vector<std::uint32_t> epochs_;
  std::vector<std::uint32_t> flags_;
  std::vector<double> uniforms_;
  std::vector<std::int64_t> slot_mapping_;
};

}  // namespace antiphon
