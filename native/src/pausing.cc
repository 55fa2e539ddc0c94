// Making room by pausing. A paused request keeps its tokens and its place in line; its blocks stay
// cached as long as nobody needs them, and what is lost of them is computed again.
#include <algorithm>

#include "plan_step.h"

namespace antiphon {

// Lets the request take `num_blocks` more, if need be at the cost of those who come after it,
// latest first. Blocks of a victim with a row in flight can't be freed now, so it is not paused:
// it only gets no row in this step, and can be paused in a later one. No more than the shortfall is
// taken or held up. Returns whether the blocks are there.
bool EngineCore::MakeRoom(Request& request, std::int32_t num_blocks, Step& step) {
  const std::int32_t num_unpromised = num_blocks - request.num_reserved();
  if (num_unpromised <= 0) {
    return true;
  }
  std::int32_t num_expected = 0;
  for (std::size_t i = running_.size(); i-- > 0;) {
    const std::int32_t shortfall = num_unpromised - capacity_.Unreserved(cache_.num_available());
    if (shortfall <= num_expected) {
      break;
    }
    Request& victim = *running_[i];
    if (&victim == &request) {
      break;  // nobody behind it is left: it waits for those before it
    }
    if (victim.planned_in == num_plans_) {
      continue;
    }
    if (victim.fenced()) {
      victim.planned_in = num_plans_;
      num_expected += NumOwnBlocks(victim);
      continue;
    }
    Pause(victim);
    capacity_.NotePause(num_plans_);
    step.has_paused = true;
  }
  return num_unpromised <= capacity_.Unreserved(cache_.num_available());
}

// Blocks that nobody shares, and those that it was promised.
std::int32_t EngineCore::NumOwnBlocks(const Request& request) const {
  const auto num_unshared = std::ranges::count_if(request.chain.blocks, [this](BlockId block) {
    return cache_.device().reference_count(block) == 1;
  });
  return static_cast<std::int32_t>(num_unshared) + request.num_reserved();
}

void EngineCore::Pause(Request& request) {
  Suspend(request, /*held=*/false);
  request.state = RequestState::kPaused;
  queue_.Add(request);
  ++num_waiting_;
  ++num_paused_;
  ++num_preemptions_;
  ++requests_.times(request).num_preemptions;
}

// Takes blocks, slot and place among those who run from a request; its tokens stay. Returns the
// node that its computed tokens are left in.
NodeId EngineCore::Suspend(Request& request, bool held) {
  ANTIPHON_CHECK(request.running() && !request.fenced() && request.num_pending == 0);
  const auto width = static_cast<std::size_t>(config_.block_tokens);
  for (auto num_hashes = request.block_hashes.size();
       cache_.reuses_prefixes() && (num_hashes + 1) * width <= request.tokens.size();
       ++num_hashes) {
    request.block_hashes.push_back(
        HashTokens(std::span<const TokenId>(request.tokens).subspan(num_hashes * width, width)));
  }
  if (request.started) {
    requests_.times(request).StartRest(now_ns_, held);
    request.num_reached = std::max(request.num_reached, request.num_computed);
  }
  GiveBack(request);
  const NodeId tip = ReleaseChain(request, request.num_computed, request.num_known());
  std::erase(running_, &request);
  ++request.epoch;
  request.num_computed = 0;
  return tip;
}

// A fault knob: the latest request that decodes is paused, as soon as it has no row in flight. So
// whoever comes back gets at least one token before he is paused again, and everything ends.
void EngineCore::PauseOnPurpose() {
  const std::int32_t every = config_.faults.pause_every;
  if (every == 0) {
    return;
  }
  pause_is_due_ = pause_is_due_ || num_plans_ % every == 0;
  const auto latest = std::find_if(running_.rbegin(), running_.rend(), [](const Request* request) {
    return request->state == RequestState::kDecode;
  });
  if (!pause_is_due_ || latest == running_.rend()) {
    return;
  }
  Request& request = **latest;
  if (request.fenced()) {
    request.planned_in = num_plans_;
    return;
  }
  pause_is_due_ = false;
  Pause(request);
}

}  // namespace antiphon
