// What a ghost engine sees of each row, when it is planned and when it is committed, beside what
// its request may have and must give.
#include <algorithm>

#include "ghost_engine.h"

namespace antiphon::ghost {

// Whether a request may lose its blocks though its caller does not want it to.
bool GhostEngine::may_pause() const {
  return config_.capacity_policy == CapacityPolicy::kMaxUtilization ||
         config_.faults.pause_every > 0;
}

void GhostEngine::NotePlannedRow(const StepBuffers& step, std::int32_t row) {
  const Handle handle = step.handle[row];
  Record& record = RecordOf(handle);
  Expect(record.live, "a row is planned for a request that has ended");
  Expect(!record.held, "a row is planned for a request that is held");
  Expect(!record.sits_out && !record.withheld, "a row is planned for a request that sits out");
  CheckWrites(step, row);
  CheckReuse(step, row, record);
  ++record.num_rows_in_flight;
  record.last_step = in_flight_.back().step;
  const bool is_first = (step.flags[row] & kFlagFirst) != 0;
  const bool is_resumed = (step.flags[row] & kFlagResumed) != 0;
  Expect(is_first == !record.started, "FLAG_FIRST is not on the first row alone");
  Expect(!is_first || !is_resumed, "a first row is a resumed one");
  Expect(!is_resumed || record.was_held || may_pause(),
         "I15: a request lost the memory that it was promised");
  record.started = true;
  work_.num_resumptions += is_resumed ? 1 : 0;
  const std::int32_t ctx_len = step.ctx_len[row];
  const std::int32_t kv_len = step.kv_len[row];
  const std::int32_t num_again = std::max(std::min(kv_len, record.num_computed_once) - ctx_len, 0);
  record.num_recomputed += num_again;
  work_.num_recomputed_tokens += num_again;
  work_.num_computed_tokens += step.q_len[row];
  record.num_computed_once = std::max(record.num_computed_once, kv_len);
  if (is_first && listener_ != nullptr) {
    Expect(step.reused_tokens[row] <= ctx_len, "more reused tokens than there are");
    listener_->OnStart(handle, step.reused_tokens[row]);
  }
}

// What lies in a node of the index is never written again, be it with the same.
void GhostEngine::CheckWrites(const StepBuffers& step, std::int32_t row) const {
  const KvCache& cache = core_.cache();
  for (std::int32_t i = step.cu_q[row]; i < step.cu_q[row + 1]; ++i) {
    const NodeId node =
        cache.device().node(static_cast<BlockId>(step.slot_mapping[i] / config_.block_tokens));
    const auto offset = static_cast<std::size_t>(step.slot_mapping[i] % config_.block_tokens);
    Expect(node == kNoNode || cache.index().tokens(node).size() <= offset,
           "I12: a row writes what others may read");
  }
}

// A row goes on where the request itself came to, or where what it may take from others ends.
void GhostEngine::CheckReuse(const StepBuffers& step, std::int32_t row,
                             const Record& record) const {
  const std::int32_t ctx_len = step.ctx_len[row];
  Expect(ctx_len <= std::max(record.num_reusable, record.num_computed_once),
         "I8: a request reads more of the cache than it may");
  Expect((step.flags[row] & kFlagFirst) == 0 || step.reused_tokens[row] <= record.num_reusable,
         "I8: more is reused than the request may");
}

// A row that brought nothing because it had none to bring, its request had ended, or its token was
// withheld: then the same position comes again, with the same draw.
void GhostEngine::TakeNoToken(const StepBuffers& step, std::int32_t row, Record& record) {
  if ((step.flags[row] & kFlagSample) == 0) {
    return;
  }
  if (step.num_tokens[row] > 0) {
    ++work_.num_void_samples;
    return;
  }
  ++work_.num_withheld;
  record.withheld = false;
  if (record.live) {
    record.num_computed_once = step.kv_len[row] - 1;
    if (!record.sits_out) {
      Expect(core_.Rejoin(step.handle[row]), "a live request cannot rejoin");
    }
  }
}

void GhostEngine::TakeResult(const StepBuffers& step, std::int32_t row) {
  const Handle handle = step.handle[row];
  Record& record = RecordOf(handle);
  --record.num_rows_in_flight;
  const std::int32_t* result = step.result + static_cast<std::size_t>(row) * kResultColumns;
  const bool samples = (step.flags[row] & kFlagSample) != 0;
  if (!record.live) {
    Expect(std::all_of(result, result + kResultColumns, [](auto value) { return value == 0; }),
           "I22: a row of an ended request has a result");
  } else {
    Expect(result[0] == step.num_tokens[row], "I19: an output token is lost or made up");
    Expect(result[3] == ++record.num_rows_committed, "a row is not counted once");
  }
  if (result[0] == 0) {
    Expect(result[1] == 0 && result[2] == 0, "a finish reason without a token");
    TakeNoToken(step, row, record);
    Forget(handle);
    return;
  }
  Expect(result[0] == 1 && samples, "a token without a sample");
  ++record.num_output;
  ++work_.num_outputs;
  Expect(result[2] == record.num_output, "I19: an output token is lost or told twice");
  const std::int32_t num_known = record.stream.num_prompt() + record.num_output;
  Expect(step.kv_len[row] == num_known - 1, "I21: a token at a wrong position");
  Expect(step.tokens[row] == record.stream.token(num_known - 1), "I20: a wrong output token");
  const FinishReason reason = ReasonFor(record);
  Expect(result[1] == static_cast<std::int32_t>(reason), "a wrong finish reason");
  if (listener_ != nullptr) {
    listener_->OnToken(handle, record.num_output);
  }
  if (reason != FinishReason::kNone) {
    End(handle, record);
    if (listener_ != nullptr) {
      listener_->OnEnd(handle, record.stream, record.num_output);
    }
    Forget(handle);
  }
}

FinishReason GhostEngine::ReasonFor(Record& record) const {
  const std::int32_t num_known = record.stream.num_prompt() + record.num_output;
  const TokenId token = record.stream.token(num_known - 1);
  if (std::ranges::find(record.end_ids, token) != record.end_ids.end()) {
    return FinishReason::kEndId;
  }
  if (std::ranges::find(record.stop_ids, token) != record.stop_ids.end()) {
    return FinishReason::kStopId;
  }
  if (record.num_output >= record.max_output) {
    return FinishReason::kMaxOutputTokens;
  }
  if (num_known >= config_.max_context_tokens) {
    return FinishReason::kContextFull;
  }
  return FinishReason::kNone;
}

void GhostEngine::End(Handle handle, Record& record) {
  record.live = false;
  --num_live_;
  num_held_ -= record.held ? 1 : 0;
  num_sitting_out_ -= record.sits_out ? 1 : 0;
  const std::optional<RequestTimes> times = core_.Times(handle);
  Expect(times && times->num_steps == record.num_rows_committed,
         "a request's times count other steps than it had");
  Expect(times->num_recomputed == record.num_recomputed,
         "a request's times count other tokens as computed again");
  Expect(times->num_preemptions == 0 || may_pause(), "I15: a request was paused");
}

// Keeps what rows in flight are still compared with.
void GhostEngine::Forget(Handle handle) {
  const Record& record = RecordOf(handle);
  if (!record.live && record.num_rows_in_flight == 0) {
    records_.erase(handle);
  }
}

}  // namespace antiphon::ghost
