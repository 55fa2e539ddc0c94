// Who is let in. Requests are looked at in the order of their right to run. One that does not fit
// may be passed by a few behind it and for a while; then nobody passes until it has run.
#include <algorithm>

#include "plan_step.h"

namespace antiphon {

namespace {

// Requests that are looked at in one step although they wait for blocks of others.
constexpr std::int32_t kMaxDeferredLooks = 64;

}  // namespace

void EngineCore::PlanAdmissions(Step& step) {
  step.load.num_running = static_cast<std::int32_t>(running_.size());
  if (queue_.empty() || step.has_paused || !capacity_.MayAdmit(step.load)) {
    return;
  }
  passed_.clear();
  std::int32_t num_deferred = 0;
  std::int32_t num_refused = 0;
  for (auto place = queue_.begin(); place != queue_.end() && HasPlace();) {
    Request& request = *requests_.Find(place->handle);
    ++place;  // an admission removes the request's own
    switch (TryAdmit(request, step)) {
      case Admission::kAdmitted:
        if (!NotePassing()) {
          return;
        }
        break;
      case Admission::kDeferred:
        passed_.push_back(request.handle);
        if (config_.bypass_requests == 0 || ++num_deferred > kMaxDeferredLooks) {
          return;
        }
        break;
      case Admission::kNoMemory:
        request.refused_in = request.refused_in == 0 ? num_plans_ : request.refused_in;
        passed_.push_back(request.handle);
        if (!MayBePassed(request) || ++num_refused > config_.bypass_requests) {
          return;
        }
        break;
      case Admission::kNoRoom:
        return;
    }
  }
}

// A slot, and a share of the budget beside those that run.
bool EngineCore::HasPlace() const {
  const std::int32_t max_admissions = config_.faults.max_admissions;
  if (max_admissions > 0 && num_admissions_ >= max_admissions) {
    return false;
  }
  return static_cast<std::int32_t>(running_.size()) < batcher_.max_running() &&
         !free_slots_.empty();
}

// Notes that one was admitted before those that wait; false if no other may be.
bool EngineCore::NotePassing() {
  bool may_go_on = true;
  for (const Handle handle : passed_) {
    Request& request = *requests_.Find(handle);
    ++request.num_bypassed;
    ++num_bypasses_;
    may_go_on = may_go_on && (request.refused_in == 0 || MayBePassed(request));
  }
  return may_go_on;
}

bool EngineCore::MayBePassed(const Request& request) const {
  return request.num_bypassed < config_.bypass_requests &&
         num_plans_ - request.refused_in < config_.bypass_steps;
}

// The prefix that is found here is the one that is claimed: nothing is allocated in between.
EngineCore::Admission EngineCore::TryAdmit(Request& request, Step& step) {
  step.load.num_running = static_cast<std::int32_t>(running_.size());
  const std::int32_t headroom = capacity_.Headroom(step.load, cache_.num_available());
  if (IsRefusedStill(request, headroom)) {
    return Admission::kNoMemory;
  }
  if (!HasTokensFor(request)) {
    return Admission::kNoRoom;
  }
  MatchPrompt(request);
  if (IsContributed(request)) {
    ++num_deferrals_;
    return Admission::kDeferred;
  }
  const std::int32_t num_needed = BlocksToPromise(request) - match_.num_live;
  if (match_.partial != kNoNode && (match_.num_host() > 0 || cache_.num_copies_left() == 0 ||
                                    num_needed + (match_.pins_partial ? 1 : 0) > headroom)) {
    match_.DropPartial();
  }
  if (num_needed > headroom) {
    request.refusal = {.stands = true,
                       .num_changes = cache_.num_changes(),
                       .headroom = headroom,
                       .num_matched = static_cast<std::int32_t>(match_.nodes.size()),
                       .tip = match_.nodes.empty() ? kNoNode : match_.nodes.back()};
    request.refusal.tip_uid =
        request.refusal.tip == kNoNode ? 0 : cache_.index().uid(request.refusal.tip);
    return Admission::kNoMemory;
  }
  if (!HasRowFor(request)) {
    return Admission::kNoRoom;
  }
  Admit(request);
  if (request.state == RequestState::kPrefill && request.may_run(num_plans_) &&
      config_.chunk_policy == ChunkPolicy::kFirstComeFirstServed) {
    PlanChunk(request, batcher_.ChunkFor(request.num_computed, request.num_remaining()), step);
  }
  return Admission::kAdmitted;
}

// Whether nothing has come about that could let in a request that was refused. O(1).
bool EngineCore::IsRefusedStill(const Request& request, std::int32_t headroom) const {
  const Refusal& refusal = request.refusal;
  if (!refusal.stands) {
    return false;
  }
  if (headroom <= refusal.headroom && cache_.num_changes() == refusal.num_changes) {
    return true;
  }
  if (refusal.tip != kNoNode && !cache_.index().alive(refusal.tip, refusal.tip_uid)) {
    return false;
  }
  const auto index = static_cast<std::size_t>(refusal.num_matched);
  const auto width = static_cast<std::size_t>(config_.block_tokens);
  if (index < request.block_hashes.size() &&
      (index + 1) * width <= static_cast<std::size_t>(request.max_reused())) {
    const auto tokens = std::span<const TokenId>(request.tokens).subspan(index * width, width);
    if (cache_.HasChild(request.chain.scope, refusal.tip, request.block_hashes[index], tokens)) {
      return false;
    }
  }
  // Its prefix is no longer than it was; even if others held all of it, it would not fit.
  return BlocksToPromise(request) - refusal.num_matched > headroom;
}

// Whether the step has tokens for one more prompt. A static batch is admitted as a whole.
bool EngineCore::HasTokensFor(const Request& request) const {
  if (capacity_.policy() == CapacityPolicy::kStaticBatch) {
    return true;
  }
  if (config_.chunk_policy == ChunkPolicy::kFirstComeFirstServed) {
    return batcher_.tokens_left() > 0 && batcher_.rows_left() > 0;
  }
  std::int32_t num_prompts = 1;
  for (const Request* other : running_) {
    num_prompts += other->state == RequestState::kPrefill && other->may_run(num_plans_) ? 1 : 0;
  }
  return request.waiting() && batcher_.rows_left() >= num_prompts &&
         batcher_.HasBlocksFor(num_prompts);
}

// Whether the chunk that the request would compute fits; where its prefix has first to be brought
// from the host, or the chunks are shared out later, that is seen then.
bool EngineCore::HasRowFor(const Request& request) const {
  if (capacity_.policy() == CapacityPolicy::kStaticBatch || match_.num_host() > 0 ||
      config_.chunk_policy == ChunkPolicy::kEqualProgress) {
    return true;
  }
  const std::int32_t num_reused = match_.num_device * config_.block_tokens + match_.partial_tokens;
  const std::int32_t q_len = batcher_.ChunkFor(num_reused, request.num_known() - num_reused);
  return q_len > 0 && batcher_.Fits(q_len, BlocksFor(num_reused + q_len, config_.block_tokens));
}

void EngineCore::MatchPrompt(const Request& request) {
  ++num_lookups_;
  if (config_.faults.miss_every > 0 && num_lookups_ % config_.faults.miss_every == 0) {
    match_.Clear();
    return;
  }
  cache_.Match(request.chain.scope, request.tokens, request.block_hashes, request.max_reused(),
               match_);
}

// Whether another request computes, in this step, the very block that this one lacks next. Who has
// been passed by as many as may pass waits no longer and computes it himself; and who missed a
// static batch would wait for all of it.
bool EngineCore::IsContributed(const Request& request) const {
  if (contributions_.empty() || capacity_.policy() == CapacityPolicy::kStaticBatch ||
      (config_.bypass_requests > 0 && request.num_bypassed >= config_.bypass_requests)) {
    return false;
  }
  const std::size_t index = match_.nodes.size();
  const auto width = static_cast<std::size_t>(config_.block_tokens);
  if (index >= request.block_hashes.size() ||
      (index + 1) * width > static_cast<std::size_t>(request.max_reused())) {
    return false;
  }
  const NodeId parent = match_.nodes.empty() ? kNoNode : match_.nodes.back();
  const auto tokens = std::span<const TokenId>(request.tokens).subspan(index * width, width);
  return std::ranges::any_of(contributions_, [&](const Contribution& contribution) {
    if (contribution.hash != request.block_hashes[index] || contribution.parent != parent ||
        contribution.scope != request.chain.scope) {
      return false;
    }
    const Request& other = *requests_.Find(contribution.handle);
    return std::ranges::equal(tokens,
                              std::span<const TokenId>(other.tokens).subspan(index * width, width));
  });
}

std::int32_t EngineCore::BlocksToPromise(const Request& request) const {
  return capacity_.BlocksToPromise(
      request.blocks_to_completion,
      std::min(BlocksFor(request.num_known() + 1, config_.block_tokens),
               request.blocks_to_completion));
}

void EngineCore::Admit(Request& request) {
  ++num_admissions_;
  queue_.Remove(request);
  --num_waiting_;
  num_paused_ -= request.state == RequestState::kPaused ? 1 : 0;
  const std::int32_t num_claimed = cache_.Claim(match_, request.chain);
  request.num_claimed = num_claimed;
  request.blocks_promised = BlocksToPromise(request);
  capacity_.Reserve(request.num_reserved());
  request.refusal = {};
  request.refused_in = 0;
  request.num_bypassed = 0;
  request.slot = free_slots_.back();
  free_slots_.pop_back();
  request.new_slot = true;
  const auto place = std::ranges::find_if(
      running_, [&request](const Request* other) { return request.precedes(*other); });
  running_.insert(place, &request);
  if (match_.num_host() > 0) {
    request.state = RequestState::kOnload;
    Onload(request);
    return;
  }
  request.state = RequestState::kPrefill;
  request.num_computed = num_claimed;
  num_reused_ += num_claimed;
}

}  // namespace antiphon
