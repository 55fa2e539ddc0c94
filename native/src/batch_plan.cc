#include "antiphon/batch_plan.h"

#include <algorithm>
#include <numeric>

namespace antiphon {

PlanWriter::PlanWriter(const StepBuffers& buffers, std::int32_t block_tokens)
    : out_(buffers), block_tokens_(block_tokens) {
  out_.cu_q[0] = 0;
  out_.sample_indptr[0] = 0;
}

void PlanWriter::AddChunk(Request& request, std::int32_t q_len) {
  CompleteDecodes();
  const std::int32_t row = num_rows_++;
  const std::int32_t start = request.num_computed;
  const bool samples = q_len == request.num_remaining();
  std::uint32_t flags = request.flags | kFlagPrefill;
  if (samples) {
    flags |= kFlagSample;
  }
  if (request.new_slot) {
    flags |= request.started ? kFlagResumed : kFlagFirst;
    out_.slot_init[num_slot_inits_++] = row;
  }
  WriteRow(row, request, flags, request.num_output());
  out_.q_len[row] = q_len;
  out_.kv_len[row] = start + q_len;
  out_.reused_tokens[row] = request.new_slot ? start : 0;
  WriteTokens(request, q_len);
  WriteTableDeltas(request.chain, request.slot);
  if (samples) {
    out_.sample_rows[num_samples_++] = num_tokens_ - 1;
  }
  out_.cu_q[num_rows_] = num_tokens_;
  out_.sample_indptr[num_rows_] = num_samples_;
}

void PlanWriter::Finish(StepId step, std::span<const CopyOp> copies) {
  CompleteDecodes();
  std::int32_t* copy = out_.copy_ops;
  for (const CopyOp& op : copies) {
    copy[0] = static_cast<std::int32_t>(op.kind);
    copy[1] = static_cast<std::int32_t>(op.source_tier);
    copy[2] = op.source;
    copy[3] = op.destination;
    copy[4] = op.num_tokens;
    copy += kCopyColumns;
  }
  std::fill_n(out_.header, static_cast<std::int32_t>(kHeaderSize), 0);
  out_.header[kHeaderNumRows] = num_rows_;
  out_.header[kHeaderNumTokens] = num_tokens_;
  out_.header[kHeaderNumTableDeltas] = num_table_deltas_;
  out_.header[kHeaderNumCopies] = static_cast<std::int32_t>(copies.size());
  out_.header[kHeaderNumPrefillRows] = num_rows_ - num_decode_rows_;
  out_.header[kHeaderNumDecodeRows] = num_decode_rows_;
  out_.header[kHeaderNumSamples] = num_samples_;
  out_.header[kHeaderNumSlotInits] = num_slot_inits_;
  out_.header[kHeaderStepId] =
      static_cast<std::int32_t>(static_cast<std::uint64_t>(step) & 0x7fffffffU);
}

// Fills in what follows from the rows that decode being the first, of one token each.
void PlanWriter::CompleteDecodes() {
  if (num_decode_rows_ < num_rows_) {
    return;  // a chunk came: it is done
  }
  const std::int32_t count = num_decode_rows_;
  std::fill_n(out_.q_len, count, 1);
  std::fill_n(out_.reused_tokens, count, 0);
  std::copy_n(out_.ctx_len, count, out_.positions);
  std::transform(out_.ctx_len, out_.ctx_len + count, out_.kv_len,
                 [](std::int32_t length) { return length + 1; });
  std::iota(out_.sample_rows, out_.sample_rows + count, 0);
  std::iota(out_.cu_q, out_.cu_q + count + 1, 0);
  std::iota(out_.sample_indptr, out_.sample_indptr + count + 1, 0);
  num_tokens_ = count;
  num_samples_ = count;
}

void PlanWriter::WriteTokens(const Request& request, std::int32_t q_len) {
  const std::int32_t first = request.num_computed;
  std::int32_t block_index = first / block_tokens_;
  std::int32_t offset = first % block_tokens_;
  for (std::int32_t position = first; position < first + q_len; ++position, ++offset) {
    if (offset == block_tokens_) {
      ++block_index;
      offset = 0;
    }
    const auto block =
        static_cast<std::int64_t>(request.chain.blocks[static_cast<std::size_t>(block_index)]);
    out_.input_ids[num_tokens_] = request.tokens[static_cast<std::size_t>(position)];
    out_.gather_slot[num_tokens_] = kNoSlot;
    out_.positions[num_tokens_] = position;
    out_.slot_mapping[num_tokens_] = block * block_tokens_ + offset;
    ++num_tokens_;
  }
}

void PlanWriter::WriteTableDeltas(BlockChain& chain, SlotId slot) {
  for (const std::int32_t block_index : chain.moved) {
    WriteTableDelta(chain, slot, block_index);
  }
  chain.moved.clear();
  const auto num_blocks = static_cast<std::int32_t>(chain.blocks.size());
  for (; chain.num_sent < num_blocks; ++chain.num_sent) {
    WriteTableDelta(chain, slot, chain.num_sent);
  }
}

void PlanWriter::WriteTableDelta(const BlockChain& chain, SlotId slot, std::int32_t block_index) {
  std::int32_t* delta =
      out_.table_delta + static_cast<std::ptrdiff_t>(num_table_deltas_) * kTableDeltaColumns;
  delta[0] = slot;
  delta[1] = block_index;
  delta[2] = chain.blocks[static_cast<std::size_t>(block_index)];
  ++num_table_deltas_;
}

}  // namespace antiphon
