// Committing a step, and ends of all kinds. A request that ends with a row in flight keeps its
// blocks, its slot and its place until that row is committed, and the row's result is void.
#include <algorithm>
#include <limits>
#include <utility>

#include "antiphon/engine_core.h"

namespace antiphon {

namespace {

constexpr std::int32_t kKeepAll = std::numeric_limits<std::int32_t>::max();

}  // namespace

// Whether the request ends with `token`, which is its last.
inline FinishReason EngineCore::ReasonToEnd(const Request& request, TokenId token) const {
  if ((request.end_filter & FilterBit(token)) != 0) {
    if (std::ranges::binary_search(request.end_ids, token)) {
      return FinishReason::kEndId;
    }
    if (std::ranges::binary_search(request.stop_ids, token)) {
      return FinishReason::kStopId;
    }
  }
  if (request.num_output() < request.output_limit) {
    return FinishReason::kNone;
  }
  return request.num_output() >= request.max_output ? FinishReason::kMaxOutputTokens
                                                    : FinishReason::kContextFull;
}

// Returns why the request has ended, or kNone.
inline FinishReason EngineCore::CommitRow(const BufferSet& set, std::size_t index) {
  const PlannedRow& row = set.rows[index];
  const TokenId token = set.buffers.tokens[index];
  std::int32_t* result = set.buffers.result + index * kResultColumns;
  Request& request = *row.request;
  ANTIPHON_CHECK(request.num_inflight >= row.shape.q_len);
  request.num_inflight -= row.shape.q_len;
  request.num_pending -= row.shape.samples ? 1 : 0;
  if (row.epoch != request.epoch) {
    CommitVoid(request);
    std::fill_n(result, kResultColumns, 0);
    return FinishReason::kNone;
  }
  NoteCommitted(request, set, row.shape);
  const bool brings_token = row.shape.samples && set.buffers.num_tokens[index] > 0;
  if (row.shape.samples && !brings_token) {
    // Before anything is published, so that what others may read is never written again.
    Check(request.num_inflight == 0, "a row that brought no token has others behind it");
    --request.num_computed;
  }
  if ((request.chain.num_published + 1) * config_.block_tokens <= request.num_settled()) {
    Publish(request);
  }
  if (row.shape.ends_prompt) {
    PublishPromptTail(request);
    WakeFollowers(request);
  }
  FinishReason reason = FinishReason::kNone;
  if (brings_token) {
    Check(set.buffers.num_tokens[index] == 1 && token >= 0, "a row brought what is no token");
    request.tokens.push_back(token);
    ++num_generated_;
    reason = ReasonToEnd(request, token);
  }
  result[0] = brings_token ? 1 : 0;
  result[1] = static_cast<std::int32_t>(reason);
  result[2] = brings_token ? request.num_output() : 0;
  result[3] = request.num_steps;
  if (reason != FinishReason::kNone) {
    Retire(request, kKeepAll);
  } else if (request.held) {
    LetRest(request);
  }
  return reason;
}

// What a row that counts means for its request's times.
inline void EngineCore::NoteCommitted(Request& request, const BufferSet& set, RowShape shape) {
  const auto num_rows = static_cast<std::int32_t>(set.rows.size());
  ++request.num_steps;
  request.num_batch_rows += num_rows;
  request.max_batch_rows = std::max(request.max_batch_rows, num_rows);
  if (shape.is_chunk() && request.num_output() == 0) {
    requests_.times(request).AddChunk({.start_ns = set.planned_ns,
                                       .end_ns = now_ns_,
                                       .step = set.step,
                                       .num_steps = 1,
                                       .num_tokens = shape.q_len,
                                       .num_rows = num_rows});
  }
}

void EngineCore::Commit(StepId step, std::int64_t now_ns) {
  Check(num_steps_in_flight_ > 0 && step == last_step_ - num_steps_in_flight_ + 1,
        "a step is committed that is not the oldest in flight");
  BufferSet& set = SetOf(step);
  now_ns_ = std::max(now_ns_, now_ns);
  bool has_ended = false;
  for (std::size_t row = 0; row < set.rows.size(); ++row) {
    has_ended = CommitRow(set, row) != FinishReason::kNone || has_ended;
  }
  if (has_ended) {
    std::erase_if(running_, [](const Request* request) { return !request->running(); });
  }
  cache_.EndStep(set.holds);
  for (const BlockId block : set.left_blocks) {
    cache_.DropReference(block);
  }
  set.left_blocks.clear();
  set.step = 0;
  --num_steps_in_flight_;
}

EngineCore::BufferSet& EngineCore::SetOf(StepId step) {
  const auto set = std::ranges::find(sets_, step, &BufferSet::step);
  ANTIPHON_CHECK(set != sets_.end());
  return *set;
}

// A row whose request has ended since it was planned.
void EngineCore::CommitVoid(Request& request) {
  if (request.num_inflight == 0) {
    Free(request, request.num_valid, request.num_wanted);
  }
}

// Publishes the blocks that are full and computed.
void EngineCore::Publish(Request& request) {
  if (!cache_.reuses_prefixes()) {
    return;
  }
  const auto width = static_cast<std::size_t>(config_.block_tokens);
  BlockChain& chain = request.chain;
  while ((chain.num_published + 1) * config_.block_tokens <= request.num_settled()) {
    const auto index = static_cast<std::size_t>(chain.num_published);
    const auto tokens = std::span<const TokenId>(request.tokens).subspan(index * width, width);
    if (index == request.block_hashes.size()) {
      request.block_hashes.push_back(HashTokens(tokens));
    }
    ReleaseLater(cache_.PublishNext(chain, request.block_hashes[index], tokens));
  }
}

// The outputs that wait for this prompt go on from its last token, not from its last whole block.
void EngineCore::PublishPromptTail(const Request& request) {
  const std::int32_t start = request.chain.num_published * config_.block_tokens;
  if (!cache_.reuses_prefixes() || request.followers.empty() || start >= request.num_prompt ||
      request.num_settled() < request.num_prompt) {
    return;
  }
  cache_.PublishPartial(request.chain,
                        std::span<const TokenId>(request.tokens)
                            .subspan(static_cast<std::size_t>(start),
                                     static_cast<std::size_t>(request.num_prompt - start)));
}

// Drops a block that a chain has left, when the last step that may touch it is committed.
void EngineCore::ReleaseLater(BlockId block) {
  if (block == kNoBlock) {
    return;
  }
  if (num_steps_in_flight_ > 1) {
    SetOf(last_step_).left_blocks.push_back(block);
  } else {
    cache_.DropReference(block);
  }
}

void EngineCore::WakeFollowers(Request& request) {
  for (const Handle handle : std::exchange(request.followers, {})) {
    Request& follower = *requests_.Find(handle);
    follower.state = RequestState::kQueued;
    queue_.Add(follower);
  }
}

bool EngineCore::Abort(Handle handle) {
  Request* request = requests_.Find(handle);
  if (request == nullptr || !request->live()) {
    return false;
  }
  End(*request, kKeepAll);
  return true;
}

bool EngineCore::Finish(Handle handle, std::int32_t keep_output_tokens) {
  if (keep_output_tokens < 0) {
    throw std::invalid_argument("keep_output_tokens must not be negative");
  }
  Request* request = requests_.Find(handle);
  if (request == nullptr || !request->live()) {
    return false;
  }
  End(*request, request->num_prompt + std::min(keep_output_tokens, request->num_output()));
  return true;
}

// Ends a request from outside.
void EngineCore::End(Request& request, std::int32_t num_wanted) {
  if (request.waiting()) {
    LeaveLine(request);
  } else if (request.state == RequestState::kHeld) {
    --num_held_;
  } else {
    std::erase(running_, &request);
  }
  Retire(request, num_wanted);
}

// Lets an ended request go, at once or when its rows in flight are committed.
void EngineCore::Retire(Request& request, std::int32_t num_wanted) {
  CloseTimes(request);
  if (request.fenced()) {
    Drain(request, num_wanted);
  } else {
    Free(request, request.num_settled(), num_wanted);
  }
}

// What comes of rows in flight is none of the request's any more.
void EngineCore::CloseTimes(const Request& request) {
  RequestTimes& times = requests_.times(request);
  times.EndRest(now_ns_);
  request.TellSteps(times);
}

// What is in flight may still be written, but counts for nothing.
void EngineCore::Drain(Request& request, std::int32_t num_wanted) {
  WakeFollowers(request);
  request.state = RequestState::kDraining;
  request.num_valid = request.num_settled();
  request.num_wanted = num_wanted;
  ++request.epoch;
}

void EngineCore::Free(Request& request, std::int32_t num_valid, std::int32_t num_wanted) {
  WakeFollowers(request);
  GiveBack(request);
  scopes_.DropUse(request.chain.scope);
  const NodeId tip = ReleaseChain(request, num_valid, num_wanted);
  if (request.session != 0) {
    sessions_.SetTip(request.session, tip);
  }
  requests_.Remove(request);
}

// The only place where a request's reservation and slot are given back.
void EngineCore::GiveBack(Request& request) {
  if (request.slot == kNoSlot) {
    return;
  }
  capacity_.Settle(request.num_reserved());
  request.blocks_promised = 0;
  free_slots_.push_back(request.slot);
  request.slot = kNoSlot;
}

// The only place where a request's blocks are given back. Of its tokens, the first `num_valid` have
// KV and the first `num_wanted` are worth keeping. Returns the node that it leaves behind.
NodeId EngineCore::ReleaseChain(Request& request, std::int32_t num_valid, std::int32_t num_wanted) {
  return cache_.Release(
      request.chain,
      std::span<const TokenId>(request.tokens).first(static_cast<std::size_t>(num_valid)),
      num_wanted);
}

}  // namespace antiphon
