#pragma once

#include <cstdint>
#include <span>

#include "antiphon/request_table.h"
#include "antiphon/types.h"

namespace antiphon {

// The arrays of one step, owned by the caller. B: rows, T: tokens, D: table deltas.
struct StepBuffers {
  std::int32_t* header = nullptr;           // [kHeaderSize]
  std::uint64_t* handle = nullptr;          // [B]
  std::uint32_t* epoch = nullptr;           // [B]
  std::int32_t* slot = nullptr;             // [B]
  std::int32_t* adapter = nullptr;          // [B]
  std::uint32_t* flags = nullptr;           // [B]
  std::int32_t* q_len = nullptr;            // [B]
  std::int32_t* cu_q = nullptr;             // [B + 1]
  std::int32_t* ctx_len = nullptr;          // [B]
  std::int32_t* kv_len = nullptr;           // [B]
  std::int32_t* reused_tokens = nullptr;    // [B]
  std::int32_t* output_position = nullptr;  // [B]
  double* uniform = nullptr;                // [B]
  std::int32_t* sample_indptr = nullptr;    // [B + 1]
  std::int32_t* sample_rows = nullptr;      // [B]
  std::int32_t* input_ids = nullptr;        // [T]
  std::int32_t* gather_slot = nullptr;      // [T]
  std::int32_t* positions = nullptr;        // [T]
  std::int64_t* slot_mapping = nullptr;     // [T]
  std::int32_t* table_delta = nullptr;      // [D, 3]
  std::int32_t* copy_ops = nullptr;         // [C, 5]
  std::int32_t* slot_init = nullptr;        // [B]
  std::int32_t* tokens = nullptr;           // [B, 1], the executor's
  std::int32_t* num_tokens = nullptr;       // [B], the executor's
  std::int32_t* result = nullptr;           // [B, 4]
  std::int32_t max_table_deltas = 0;        // D
  std::int32_t max_copies = 0;              // C
};

inline constexpr std::int32_t kResultColumns = 4;
inline constexpr std::int32_t kTableDeltaColumns = 3;
inline constexpr std::int32_t kCopyColumns = 5;

// Table deltas that a row needs to let the device know all blocks of `chain` up to `num_blocks`.
inline std::int32_t NumTableDeltas(const BlockChain& chain, std::int32_t num_blocks) {
  return static_cast<std::int32_t>(chain.moved.size()) + num_blocks - chain.num_sent;
}

// Writes a step's rows into its buffers, one after the other: first those that decode, then chunks.
//
// Invariants:
//  1. Writes nothing beyond what the rows need: the caller has checked the capacities.
//
// Not thread-safe.
class PlanWriter {
 public:
  // `buffers` outlives the writer.
  PlanWriter(const StepBuffers& buffers, std::int32_t block_tokens);

  // Adds a row that computes the last token of a request that decodes. Where that is not known yet,
  // the device is told to read what its slot sampled last. Brings the chain's device block table up
  // to date.
  // REQUIRES: one token is left to compute, the chain's last block is for it, and no chunk was
  // added
  void AddDecode(Request& request);

  // Adds a row that computes the next `q_len` tokens of a prompt, or of a request that comes back;
  // all of them are known. Brings the chain's device block table up to date.
  // REQUIRES: the chain has blocks for those tokens
  void AddChunk(Request& request, std::int32_t q_len);

  // Writes the step's copies and completes the header.
  void Finish(StepId step, std::span<const CopyOp> copies);

  std::int32_t num_rows() const { return num_rows_; }

 private:
  void WriteRow(std::int32_t row, const Request& request, std::uint32_t flags,
                std::int32_t output_position);
  void CompleteDecodes();
  void WriteTokens(const Request& request, std::int32_t q_len);
  void WriteTableDeltas(BlockChain& chain, SlotId slot);
  void WriteTableDelta(const BlockChain& chain, SlotId slot, std::int32_t block_index);

  const StepBuffers& out_;
  std::int32_t block_tokens_;
  std::int32_t num_rows_ = 0;
  std::int32_t num_decode_rows_ = 0;
  std::int32_t num_tokens_ = 0;
  std::int32_t num_table_deltas_ = 0;
  std::int32_t num_samples_ = 0;
  std::int32_t num_slot_inits_ = 0;
};

// Both are here so that planning a row that decodes, which most rows of most steps do, is one piece
// of code. Only what differs from row to row is written.
inline void PlanWriter::AddDecode(Request& request) {
  ANTIPHON_CHECK(num_decode_rows_ == num_rows_);
  const std::int32_t row = num_rows_++;
  ++num_decode_rows_;
  const std::int32_t position = request.num_computed;
  WriteRow(row, request, request.flags | kFlagSample, position + 1 - request.num_prompt);
  const bool is_known = request.num_pending == 0;
  out_.input_ids[row] = is_known ? request.tokens.back() : kUnknownToken;
  out_.gather_slot[row] = is_known ? kNoSlot : request.slot;
  const std::int32_t last_start = (request.num_blocks() - 1) * block_tokens_;
  out_.slot_mapping[row] = static_cast<std::int64_t>(request.chain.blocks.back()) * block_tokens_ +
                           position - last_start;
  if (NumTableDeltas(request.chain, request.num_blocks()) > 0) {
    WriteTableDeltas(request.chain, request.slot);
  }
}

inline void PlanWriter::WriteRow(std::int32_t row, const Request& request, std::uint32_t flags,
                                 std::int32_t output_position) {
  out_.handle[row] = request.handle;
  out_.epoch[row] = request.epoch;
  out_.slot[row] = request.slot;
  out_.adapter[row] = request.adapter;
  out_.flags[row] = flags;
  out_.ctx_len[row] = request.num_computed;
  out_.output_position[row] = output_position;
  out_.uniform[row] = request.draws.At(static_cast<std::uint32_t>(output_position));
}

}  // namespace antiphon
