#include "antiphon/batch_plan.h"

#include <algorithm>

#include "antiphon/random.h"

namespace antiphon {

namespace {

std::uint32_t FlagsOf(const Request& request, bool samples) {
  std::uint32_t flags = request.flags;
  if (request.state == RequestState::kPrefill) {
    flags |= kFlagPrefill;
  }
  if (samples) {
    flags |= kFlagSample;
  }
  if (request.new_slot) {
    flags |= request.started ? kFlagResumed : kFlagFirst;
  }
  return flags;
}

}  // namespace

PlanWriter::PlanWriter(const StepBuffers& buffers, std::int32_t block_tokens)
    : out_(buffers), block_tokens_(block_tokens) {
  out_.cu_q[0] = 0;
  out_.sample_indptr[0] = 0;
}

void PlanWriter::AddRow(Request& request, std::int32_t q_len) {
  const std::int32_t row = num_rows_++;
  const std::int32_t kv_len = request.num_computed + q_len;
  const bool is_prefill = request.state == RequestState::kPrefill;
  const bool samples = q_len == request.num_remaining();
  const std::int32_t output_position = request.num_output() + request.num_pending;

  out_.handle[row] = request.handle;
  out_.epoch[row] = request.epoch;
  out_.slot[row] = request.slot;
  out_.adapter[row] = request.adapter;
  out_.flags[row] = FlagsOf(request, samples);
  out_.q_len[row] = q_len;
  out_.ctx_len[row] = request.num_computed;
  out_.kv_len[row] = kv_len;
  out_.reused_tokens[row] = request.new_slot ? request.num_computed : 0;
  out_.output_position[row] = output_position;
  out_.uniform[row] = Uniform(request.seed, static_cast<std::uint32_t>(request.output_index),
                              static_cast<std::uint32_t>(output_position));
  WriteTokens(request, q_len);
  WriteTableDeltas(request.chain, request.slot);
  if (samples) {
    out_.sample_rows[num_samples_++] = num_tokens_ - 1;
  }
  if (request.new_slot) {
    out_.slot_init[num_slot_inits_++] = row;
  }
  num_prefill_rows_ += is_prefill ? 1 : 0;
  out_.cu_q[num_rows_] = num_tokens_;
  out_.sample_indptr[num_rows_] = num_samples_;
}

void PlanWriter::Finish(StepId step, std::span<const CopyOp> copies) {
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
  out_.header[kHeaderNumPrefillRows] = num_prefill_rows_;
  out_.header[kHeaderNumDecodeRows] = num_rows_ - num_prefill_rows_;
  out_.header[kHeaderNumSamples] = num_samples_;
  out_.header[kHeaderNumSlotInits] = num_slot_inits_;
  out_.header[kHeaderStepId] =
      static_cast<std::int32_t>(static_cast<std::uint64_t>(step) & 0x7fffffffU);
}

void PlanWriter::WriteTokens(const Request& request, std::int32_t q_len) {
  const std::int32_t first = request.num_computed;
  // Decoding goes on in the last block; divisions are worth avoiding there.
  const std::int32_t last_start = (request.num_blocks() - 1) * block_tokens_;
  std::int32_t block_index = first >= last_start ? request.num_blocks() - 1 : first / block_tokens_;
  std::int32_t offset = first - block_index * block_tokens_;
  for (std::int32_t position = first; position < first + q_len; ++position, ++offset) {
    if (offset == block_tokens_) {
      ++block_index;
      offset = 0;
    }
    const auto block =
        static_cast<std::int64_t>(request.chain.blocks[static_cast<std::size_t>(block_index)]);
    const bool is_known = position < request.num_known();
    out_.input_ids[num_tokens_] =
        is_known ? request.tokens[static_cast<std::size_t>(position)] : kUnknownToken;
    out_.gather_slot[num_tokens_] = is_known ? kNoSlot : request.slot;
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
