// Planning a step. One pass decides memory and tokens together, so that nobody is admitted for a
// row that the step then has no room for.
#include "plan_step.h"

namespace antiphon {

StepId EngineCore::Plan(std::int32_t set_index, std::int64_t now_ns) {
  ANTIPHON_CHECK(set_index >= 0 && set_index < config_.num_buffer_sets);
  BufferSet& set = sets_[static_cast<std::size_t>(set_index)];
  ANTIPHON_CHECK(set.registered);
  Check(set.step == 0, "a set is planned into whose step is in flight");
  Check(num_steps_in_flight_ <= config_.run_ahead, "more steps are in flight than run_ahead");
  ++num_plans_;
  set.rows.clear();
  contributions_.clear();
  now_ns_ = std::max(now_ns_, now_ns);
  cache_.BeginStep(now_ns_ / 1000, config_.max_step_copies);
  batcher_.Begin(set.buffers.max_table_deltas);
  Step step{.writer = PlanWriter(set.buffers, config_.block_tokens), .rows = set.rows};

  PauseOnPurpose();
  PlanDecodes(step);
  if (step.any_onloading) {
    ContinueOnloads();
  }
  if (config_.chunk_policy == ChunkPolicy::kFirstComeFirstServed) {
    PlanPrefillsInOrder(step);
    PlanAdmissions(step);
  } else {
    PlanAdmissions(step);
    PlanPrefillsEqually(step);
  }
  if (set.rows.empty() && cache_.copies().empty()) {
    step.writer.Finish(0, {});
    // Whoever was admitted without a row or a copy may hold what he matched on the host.
    StepHolds holds = cache_.TakeHolds();
    cache_.EndStep(holds);
    NoteEmptyPlan();
    return 0;
  }
  num_empty_plans_ = 0;
  set.holds = cache_.TakeHolds();
  set.step = ++last_step_;
  set.planned_ns = now_ns_;
  ++num_steps_in_flight_;
  step.writer.Finish(set.step, cache_.copies());
  return set.step;
}

// What a row that was written means for its request.
inline void EngineCore::NoteRow(Request& request, RowShape shape, Step& step) {
  request.num_computed += shape.q_len;
  request.num_inflight += shape.q_len;
  request.num_pending += shape.samples ? 1 : 0;
  request.planned_in = num_plans_;
  if ((request.chain.num_published + 1) * config_.block_tokens <= request.num_computed) {
    NoteContribution(request);
  }
  PlannedRow& row = step.rows.emplace_back();
  row.request = &request;
  row.epoch = request.epoch;
  row.shape = shape;
}

void EngineCore::PlanDecodes(Step& step) {
  step.load.num_plans = num_plans_;
  // Whoever is paused meanwhile comes later in the list.
  for (std::size_t i = 0; i < running_.size(); ++i) {
    Request& request = *running_[i];
    if (request.state != RequestState::kDecode) {
      step.any_onloading = step.any_onloading || request.state == RequestState::kOnload;
      continue;
    }
    step.load.any_decoding = true;
    // A request that will end with a token in flight needs no row behind it.
    if (!request.may_run(num_plans_) ||
        request.num_output() + request.num_pending >= request.output_limit) {
      continue;
    }
    const bool has_block = request.num_computed < request.num_blocks() * config_.block_tokens;
    if (has_block ? batcher_.Take(1, NumTableDeltas(request.chain, request.num_blocks()))
                  : TakeNextBlock(request, step)) {
      step.writer.AddDecode(request);
      NoteRow(request, {.q_len = 1, .samples = true}, step);
    }
  }
}

// Takes a row and a block for a request that decodes and has filled its last one, if the step and
// memory have room for it.
bool EngineCore::TakeNextBlock(Request& request, Step& step) {
  const std::int32_t num_deltas = NumTableDeltas(request.chain, request.num_blocks() + 1);
  if (!batcher_.Fits(1, num_deltas) || !MakeRoom(request, 1, step)) {
    return false;
  }
  TakeBlocks(request, 1);
  return batcher_.Take(1, num_deltas);
}

void EngineCore::PlanPrefillsInOrder(Step& step) {
  if (step.rows.size() == running_.size()) {
    return;
  }
  for (Request* request : running_) {
    if (request->state == RequestState::kPrefill && request->may_run(num_plans_)) {
      PlanChunk(*request, batcher_.ChunkFor(request->num_computed, request->num_remaining()), step);
    }
  }
}

void EngineCore::PlanPrefillsEqually(Step& step) {
  chunks_.clear();
  passed_.clear();
  for (const Request* request : running_) {
    if (request->state == RequestState::kPrefill && request->may_run(num_plans_)) {
      passed_.push_back(request->handle);
      chunks_.push_back({.start = request->num_computed, .remaining = request->num_remaining()});
    }
  }
  batcher_.ShareEqually(chunks_);
  for (std::size_t i = 0; i < chunks_.size(); ++i) {
    PlanChunk(*requests_.Find(passed_[i]), chunks_[i].q_len, step);
  }
}

// Gives a prompt a row, if its chunk is not empty and the step has room for it.
bool EngineCore::PlanChunk(Request& request, std::int32_t q_len, Step& step) {
  const std::int32_t end = request.num_computed + q_len;
  const std::int32_t num_blocks = BlocksFor(end, config_.block_tokens);
  if (q_len == 0 || !batcher_.Take(q_len, NumTableDeltas(request.chain, num_blocks))) {
    return false;
  }
  if (num_blocks > request.num_blocks()) {
    TakeBlocks(request, num_blocks - request.num_blocks());
  }
  const bool ends_prompt = q_len == request.num_remaining();
  step.writer.AddChunk(request, q_len);
  NoteReuse(request, end);
  num_prefilled_ += std::max(
      std::min(end, request.num_prompt) - std::max(request.num_computed, request.num_reached), 0);
  request.started = true;
  request.new_slot = false;
  if (ends_prompt) {
    request.state = RequestState::kDecode;
  }
  NoteRow(request, {.q_len = q_len, .samples = ends_prompt, .ends_prompt = ends_prompt}, step);
  return true;
}

// Notes what the tokens up to `end`, which are computed now, and those before them say of reuse.
void EngineCore::NoteReuse(const Request& request, std::int32_t end) {
  const std::int32_t num_again =
      std::max(std::min(end, request.num_reached) - request.num_computed, 0);
  num_recomputed_ += num_again;
  RequestTimes& times = requests_.times(request);
  times.num_recomputed += num_again;
  if (!request.new_slot) {
    return;
  }
  times.EndRest(now_ns_);
  // What it had computed itself before a rest is no reuse.
  const std::int32_t num_reused = std::max(request.num_computed - request.num_reached, 0);
  const std::int32_t num_from_host =
      std::min(num_reused, request.num_computed - request.num_claimed);
  times.num_host_reused += num_from_host;
  times.num_device_reused += num_reused - num_from_host;
}

void EngineCore::TakeBlocks(Request& request, std::int32_t count) {
  const std::int32_t num_promised = std::min(count, request.num_reserved());
  cache_.Extend(request.chain, count);
  capacity_.Settle(num_promised);
}

// Lets others wait for the block that the request will publish next, which this step computes. Only
// who has really got a row contributes: nobody must wait for one who waits himself.
void EngineCore::NoteContribution(const Request& request) {
  const auto index = static_cast<std::size_t>(request.chain.num_published);
  if (index < request.block_hashes.size() && config_.prefix_deferral && cache_.reuses_prefixes()) {
    contributions_.push_back({.scope = request.chain.scope,
                              .parent = request.chain.tip,
                              .hash = request.block_hashes[index],
                              .handle = request.handle});
  }
}

void EngineCore::ContinueOnloads() {
  for (Request* request : running_) {
    if (request->state == RequestState::kOnload && request->may_run(num_plans_)) {
      Onload(*request);
    }
  }
}

// Brings what the host has of a request's prefix, as far as this step may copy. When there is no
// more, the rest of its prompt is computed.
void EngineCore::Onload(Request& request) {
  const auto width = static_cast<std::size_t>(config_.block_tokens);
  BlockChain& chain = request.chain;
  for (auto index = static_cast<std::size_t>(chain.num_published);
       index < request.block_hashes.size() &&
       (index + 1) * width <= static_cast<std::size_t>(request.max_reused());
       ++index) {
    const auto tokens = std::span<const TokenId>(request.tokens).subspan(index * width, width);
    const std::uint64_t hash = request.block_hashes[index];
    if (!cache_.HasChild(chain.scope, chain.tip, hash, tokens)) {
      break;
    }
    if (cache_.num_copies_left() == 0) {
      return;
    }
    const std::int32_t num_promised = std::min(1, request.num_reserved());
    if (!cache_.ClaimNext(chain, hash, tokens)) {
      break;
    }
    capacity_.Settle(num_promised);
  }
  request.state = RequestState::kPrefill;
  request.num_computed = chain.num_published * config_.block_tokens;
  num_reused_ += request.num_computed;
}

void EngineCore::NoteEmptyPlan() {
  const bool could_run =
      (num_waiting_ > 0 || !running_.empty()) &&
      std::ranges::none_of(running_, [](const Request* request) { return request->sits_out; });
  num_empty_plans_ = could_run && num_steps_in_flight_ == 0 ? num_empty_plans_ + 1 : 0;
  if (num_empty_plans_ >= config_.stall_passes) {
    throw StalledError(Census());
  }
}

}  // namespace antiphon
