// Planning a step. One pass decides memory and tokens together, so that nobody is admitted for a
// row that the step then has no room for.
#include "antiphon/engine_core.h"

namespace antiphon {

// What is under way while a step is planned.
struct EngineCore::Step {
  PlanWriter writer;
  std::vector<PlannedRow>& rows;
};

StepId EngineCore::Plan(std::int32_t set_index) {
  ANTIPHON_CHECK(set_index >= 0 && set_index < config_.num_buffer_sets);
  BufferSet& set = sets_[static_cast<std::size_t>(set_index)];
  ANTIPHON_CHECK(set.registered);
  Check(num_steps_in_flight_ == 0, "a step is planned while another is in flight");
  set.rows.clear();
  batcher_.Begin(set.buffers.max_table_deltas);
  Step step{.writer = PlanWriter(set.buffers, config_.block_tokens), .rows = set.rows};
  PlanRunning(RequestState::kDecode, step);
  if (set.rows.size() < running_.size()) {
    PlanRunning(RequestState::kPrefill, step);
  }
  PlanAdmissions(step);
  if (set.rows.empty()) {
    step.writer.Finish(0);
    return 0;
  }
  set.step = ++last_step_;
  ++num_steps_in_flight_;
  step.writer.Finish(set.step);
  return set.step;
}

void EngineCore::PlanRunning(RequestState state, Step& step) {
  for (const Handle handle : running_) {
    Request& request = *requests_.Find(handle);
    if (request.state != state) {
      continue;
    }
    const std::int32_t remaining = request.num_known() - request.num_computed;
    const std::int32_t q_len = batcher_.ChunkFor(request.num_computed, remaining);
    const std::int32_t num_blocks = BlocksFor(request.num_computed + q_len, config_.block_tokens);
    if (q_len > 0 && batcher_.Take(q_len, NumTableDeltas(request.chain, num_blocks))) {
      PlanRow(request, q_len, /*is_first=*/false, step);
    }
  }
}

void EngineCore::PlanAdmissions(Step& step) {
  while (!queue_.empty() && batcher_.tokens_left() > 0 &&
         static_cast<std::int32_t>(running_.size()) < batcher_.max_running()) {
    if (!Admit(*requests_.Find(queue_.head()), step)) {
      return;
    }
  }
}

// The prefix that is found here is the one that is claimed: nothing is allocated in between.
bool EngineCore::Admit(Request& request, Step& step) {
  const std::int32_t num_available = cache_.num_available();
  const Refusal refusal = {.handle = request.handle,
                           .num_publications = cache_.num_publications(),
                           .num_unreserved = capacity_.Unreserved(num_available)};
  if (refusal == refusal_) {
    return false;
  }
  // One token at least is left to compute: its logits give the first output token.
  cache_.Match(request.chain.scope, request.tokens, request.prompt_hashes,
               (request.num_prompt - 1) / config_.block_tokens, match_);
  if (!capacity_.Fits(request.num_blocks_needed, match_.num_live, num_available)) {
    refusal_ = refusal;
    return false;
  }
  const auto num_hits = static_cast<std::int32_t>(match_.nodes.size());
  const std::int32_t num_reused = num_hits * config_.block_tokens;
  const std::int32_t q_len = batcher_.ChunkFor(num_reused, request.num_known() - num_reused);
  if (q_len == 0 || !batcher_.Take(q_len, BlocksFor(num_reused + q_len, config_.block_tokens))) {
    return false;
  }
  refusal_ = {};
  queue_.Remove(request);
  --num_waiting_;
  cache_.Claim(match_, request.chain);
  capacity_.Reserve(request.num_blocks_needed - num_hits);
  request.state = RequestState::kPrefill;
  request.num_computed = num_reused;
  request.slot = free_slots_.back();
  free_slots_.pop_back();
  running_.push_back(request.handle);
  num_reused_ += num_reused;
  PlanRow(request, q_len, /*is_first=*/true, step);
  return true;
}

void EngineCore::PlanRow(Request& request, std::int32_t q_len, bool is_first, Step& step) {
  const std::int32_t num_new_blocks =
      BlocksFor(request.num_computed + q_len, config_.block_tokens) -
      static_cast<std::int32_t>(request.chain.blocks.size());
  if (num_new_blocks > 0) {
    cache_.Extend(request.chain, num_new_blocks);
    capacity_.Settle(num_new_blocks);
  }
  step.writer.AddRow(request, q_len, is_first);
  request.num_computed += q_len;
  request.num_inflight += q_len;
  ++request.num_steps;
  if (request.state == RequestState::kPrefill) {
    num_prefilled_ += q_len;
  }
  step.rows.push_back({.handle = request.handle,
                       .epoch = request.epoch,
                       .q_len = q_len,
                       .samples = request.num_computed == request.num_known()});
}

}  // namespace antiphon
