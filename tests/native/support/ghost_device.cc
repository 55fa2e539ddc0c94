#include "ghost_device.h"

#include <algorithm>

namespace antiphon::ghost {

namespace {

constexpr std::int32_t kCopyColumns = 5;

std::size_t Index(std::int64_t value) { return static_cast<std::size_t>(value); }

}  // namespace

void Expect(bool holds, const char* what, std::source_location where) {
  if (!holds) [[unlikely]] {
    throw Contradiction(std::string(what) + " (" + where.file_name() + ":" +
                        std::to_string(where.line()) + ")");
  }
}

GhostDevice::GhostDevice(const CoreConfig& config, std::int32_t vocabulary, std::uint64_t seed)
    : config_(config),
      vocabulary_(vocabulary),
      max_context_blocks_(BlocksFor(config.max_context_tokens, config.block_tokens)),
      dice_(seed),
      device_(Index(config.num_blocks) * Index(config.block_tokens), kUnwritten),
      host_(Index(config.num_host_blocks + 1) * Index(config.block_tokens), kUnwritten),
      table_(Index(config.max_rows) * Index(max_context_blocks_), kNoBlock),
      last_tokens_(Index(config.max_rows), -1),
      cell_steps_(device_.size(), 0),
      slot_steps_(Index(config.max_rows), 0) {}

void GhostDevice::Execute(const StepBuffers& step, const StreamOf& stream_of,
                          const std::vector<bool>& withheld) {
  ++num_steps_;
  CheckShape(step);
  ApplyTableDeltas(step);
  const std::int32_t num_rows = step.header[kHeaderNumRows];
  // All contexts are read before anything is written: KV of this step is nobody's prefix yet.
  for (std::int32_t row = 0; row < num_rows; ++row) {
    ReadContext(step, row, stream_of(step.handle[row]));
  }
  for (std::int32_t row = 0; row < num_rows; ++row) {
    Stream& stream = stream_of(step.handle[row]);
    ComputeRow(step, row, stream);
    Sample(step, row, stream);
    if (withheld[Index(row)]) {
      Withhold(step, row);
    }
  }
}

void GhostDevice::CheckShape(const StepBuffers& step) {
  const std::int32_t* header = step.header;
  const std::int32_t num_rows = header[kHeaderNumRows];
  const std::int32_t num_tokens = header[kHeaderNumTokens];
  Expect(num_rows >= 0 && num_rows <= config_.max_rows, "I13: too many rows");
  Expect(num_tokens >= 0 && num_tokens <= config_.max_step_tokens, "I13: too many tokens");
  Expect(header[kHeaderNumTableDeltas] <= step.max_table_deltas, "too many table deltas");
  Expect(num_rows > 0 || header[kHeaderNumCopies] > 0, "a step without rows and copies");
  Expect(header[kHeaderNumPrefillRows] + header[kHeaderNumDecodeRows] == num_rows,
         "rows are not prefill and decode rows");
  Expect(step.cu_q[0] == 0 && step.cu_q[num_rows] == num_tokens, "cu_q does not add up");
  Expect(step.sample_indptr[0] == 0 && step.sample_indptr[num_rows] == header[kHeaderNumSamples],
         "sample_indptr does not add up");
  for (std::int32_t row = 0; row < num_rows; ++row) {
    CheckRow(step, row);
  }
  CheckSlotInits(step);
}

void GhostDevice::CheckRow(const StepBuffers& step, std::int32_t row) {
  const std::int32_t q_len = step.q_len[row];
  const std::int32_t begin = step.cu_q[row];
  const bool prefills = (step.flags[row] & kFlagPrefill) != 0;
  const bool samples = (step.flags[row] & kFlagSample) != 0;
  Expect(q_len >= 1, "I14: a row without tokens");
  Expect(step.cu_q[row + 1] - begin == q_len, "cu_q is not the sum of q_len");
  Expect(step.kv_len[row] == step.ctx_len[row] + q_len, "kv_len is not ctx_len and q_len");
  Expect(step.kv_len[row] <= config_.max_context_tokens, "a row exceeds the context");
  Expect(prefills || (samples && q_len == 1), "a decode row has one token and samples");
  Expect(samples || step.kv_len[row] % config_.block_tokens == 0,
         "I14: a chunk that is not the last ends inside a block");
  Expect(config_.chunk_tokens == 0 || q_len <= config_.chunk_tokens, "a chunk is too long");
  const std::int32_t num_samples = step.sample_indptr[row + 1] - step.sample_indptr[row];
  Expect(num_samples == (samples ? 1 : 0), "samples and FLAG_SAMPLE disagree");
  Expect(!samples || step.sample_rows[step.sample_indptr[row]] == begin + q_len - 1,
         "a row samples at another token than its last");
  const SlotId slot = step.slot[row];
  Expect(slot >= 0 && slot < config_.max_rows, "a slot out of range");
  Expect(slot_steps_[Index(slot)] != num_steps_, "I13: two rows of one slot in a step");
  slot_steps_[Index(slot)] = num_steps_;
}

void GhostDevice::CheckSlotInits(const StepBuffers& step) {
  std::int32_t num_inits = 0;
  for (std::int32_t row = 0; row < step.header[kHeaderNumRows]; ++row) {
    if ((step.flags[row] & (kFlagFirst | kFlagResumed)) == 0) {
      continue;
    }
    Expect(num_inits < step.header[kHeaderNumSlotInits] && step.slot_init[num_inits] == row,
           "slot_init does not name a row whose slot is new");
    ++num_inits;
  }
  Expect(num_inits == step.header[kHeaderNumSlotInits], "slot_init names too many rows");
}

void GhostDevice::ApplyTableDeltas(const StepBuffers& step) {
  for (std::int32_t i = 0; i < step.header[kHeaderNumTableDeltas]; ++i) {
    const std::int32_t* delta = step.table_delta + Index(i) * kTableDeltaColumns;
    Expect(delta[2] > kScratchBlock && delta[2] < config_.num_blocks,
           "I4: a block table with scratch or no block");
    TableEntry(delta[0], delta[1]) = delta[2];
  }
}

void GhostDevice::Copy(const StepBuffers& step) {
  for (const CopyKind kind : {CopyKind::kOffload, CopyKind::kOnload, CopyKind::kOnWrite}) {
    std::vector<const std::int32_t*> copies;
    for (std::int32_t i = 0; i < step.header[kHeaderNumCopies]; ++i) {
      const std::int32_t* copy = step.copy_ops + Index(i) * kCopyColumns;
      if (copy[0] == static_cast<std::int32_t>(kind)) {
        copies.push_back(copy);
      }
    }
    dice_.Shuffle(copies);
    num_copies_ += static_cast<std::int64_t>(copies.size());
    for (const std::int32_t* copy : copies) {
      RunCopy(copy);
    }
  }
}

// Leaves nothing in the rest of the destination, so that reading beyond a copy shows.
void GhostDevice::RunCopy(const std::int32_t* copy) {
  const auto source_tier = static_cast<Tier>(copy[1]);
  const bool offloads = copy[0] == static_cast<std::int32_t>(CopyKind::kOffload);
  Expect(!offloads || source_tier == Tier::kDevice, "an offload from the host");
  Expect(copy[0] != static_cast<std::int32_t>(CopyKind::kOnload) || source_tier == Tier::kHost,
         "an onload from the device");
  Expect(copy[4] >= 1 && copy[4] <= config_.block_tokens, "a copy of no tokens or too many");
  const std::span<Chain> source = Block(source_tier, copy[2]);
  const std::span<Chain> destination = Block(offloads ? Tier::kHost : Tier::kDevice, copy[3]);
  Expect(source.data() != destination.data(), "a copy onto itself");
  const auto num_tokens = Index(copy[4]);
  Expect(std::ranges::find(source.first(num_tokens), kUnwritten) == source.begin() + copy[4],
         "I11: a copy of what was never written");
  std::ranges::copy(source.first(num_tokens), destination.begin());
  std::ranges::fill(destination.subspan(num_tokens), kUnwritten);
}

void GhostDevice::ReadContext(const StepBuffers& step, std::int32_t row, Stream& stream) {
  const std::int32_t width = config_.block_tokens;
  const std::int32_t ctx_len = step.ctx_len[row];
  const std::span<const Chain> expected = stream.chains(ctx_len);
  for (std::int32_t begin = 0; begin < ctx_len; begin += width) {
    const auto count = Index(std::min(width, ctx_len - begin));
    const BlockId block = TableEntry(step.slot[row], begin / width);
    Expect(block != kNoBlock, "I11: a context without a block");
    Expect(std::ranges::equal(Block(Tier::kDevice, block).first(count),
                              expected.subspan(Index(begin), count)),
           "I11: a context that is not the request's own");
  }
}

void GhostDevice::ComputeRow(const StepBuffers& step, std::int32_t row, Stream& stream) {
  const SlotId slot = step.slot[row];
  std::int32_t position = step.ctx_len[row];
  Chain chain = position == 0 ? stream.root() : CellAt(slot, position - 1);
  for (std::int32_t i = step.cu_q[row]; i < step.cu_q[row + 1]; ++i, ++position) {
    TokenId token = step.input_ids[i];
    if (token < 0) {
      Expect(step.gather_slot[i] == slot, "an unknown token of another slot");
      token = last_tokens_[Index(slot)];
    } else {
      Expect(step.gather_slot[i] == kNoSlot, "a known token is gathered");
    }
    Expect(token == stream.token(position), "I19: an input token that is not the request's");
    Expect(step.positions[i] == position, "a token at a wrong position");
    const std::int64_t cell = step.slot_mapping[i];
    Expect(&CellAt(slot, position) == &device_[Index(cell)], "slot_mapping and table disagree");
    Expect(cell_steps_[Index(cell)] != num_steps_, "I12: two rows write one cell in a step");
    cell_steps_[Index(cell)] = num_steps_;
    chain = Append(chain, token);
    device_[Index(cell)] = chain;
  }
  num_computed_tokens_ += step.q_len[row];
}

void GhostDevice::Sample(const StepBuffers& step, std::int32_t row, Stream& stream) {
  const bool samples = (step.flags[row] & kFlagSample) != 0;
  step.num_tokens[row] = samples ? 1 : 0;
  step.tokens[row] = -1;
  if (!samples) {
    return;
  }
  const std::int32_t output_position = step.kv_len[row] - stream.num_prompt();
  Expect(step.output_position[row] == output_position, "I19: a wrong output position");
  Expect(step.uniform[row] == stream.draws().At(output_position), "I19: a wrong draw");
  const Chain chain = CellAt(step.slot[row], step.kv_len[row] - 1);
  step.tokens[row] = NextToken(chain, step.uniform[row], vocabulary_);
  last_tokens_[Index(step.slot[row])] = step.tokens[row];
}

// The row's last cell is as if it had never been written, so that who reads it too early shows.
void GhostDevice::Withhold(const StepBuffers& step, std::int32_t row) {
  const SlotId slot = step.slot[row];
  step.num_tokens[row] = 0;
  step.tokens[row] = -1;
  last_tokens_[Index(slot)] = -1;
  CellAt(slot, step.kv_len[row] - 1) = kUnwritten;
}

std::span<Chain> GhostDevice::Block(Tier tier, BlockId block) {
  std::vector<Chain>& memory = tier == Tier::kHost ? host_ : device_;
  const std::int32_t limit = tier == Tier::kHost ? config_.num_host_blocks + 1 : config_.num_blocks;
  Expect(block > kScratchBlock && block < limit, "a block out of range");
  const auto width = Index(config_.block_tokens);
  return std::span(memory).subspan(Index(block) * width, width);
}

BlockId& GhostDevice::TableEntry(SlotId slot, std::int32_t block_index) {
  Expect(slot >= 0 && slot < config_.max_rows, "a slot out of range");
  Expect(block_index >= 0 && block_index < max_context_blocks_, "a block index out of range");
  return table_[Index(slot) * Index(max_context_blocks_) + Index(block_index)];
}

Chain& GhostDevice::CellAt(SlotId slot, std::int32_t position) {
  const BlockId block = TableEntry(slot, position / config_.block_tokens);
  Expect(block != kNoBlock, "I11: a position without a block");
  return device_[Index(block) * Index(config_.block_tokens) +
                 Index(position % config_.block_tokens)];
}

}  // namespace antiphon::ghost
