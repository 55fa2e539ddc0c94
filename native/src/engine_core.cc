// The life of a request: queued (or waiting for its leader), admitted with all the memory that it
// can need, prefilled in chunks, decoded one token a step, ended. One pass decides memory and
// tokens together, so that nobody is admitted for a row that the step then has no room for.
#include "antiphon/engine_core.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace antiphon {

namespace {

constexpr std::int32_t kKeepAll = std::numeric_limits<std::int32_t>::max();

void Require(bool holds, const std::string& message) {
  if (!holds) {
    throw std::invalid_argument(message);
  }
}

CoreConfig Checked(const CoreConfig& config) {
  Require(config.num_blocks >= 2, "num_blocks must be at least 2: scratch and one more");
  Require(config.block_tokens >= 1, "block_tokens must be at least 1");
  Require(config.max_rows >= 1, "max_rows must be at least 1");
  Require(config.max_step_tokens >= config.block_tokens,
          "max_step_tokens must be at least block_tokens, so that a prompt gets on");
  Require(config.max_context_tokens >= 2, "max_context_tokens must be at least 2");
  Require(config.max_requests >= 1, "max_requests must be at least 1");
  Require(config.chunk_tokens == 0 || config.chunk_tokens >= config.block_tokens,
          "chunk_tokens must be 0 or at least block_tokens");
  Require(config.num_buffer_sets >= 1, "num_buffer_sets must be at least 1");
  return config;
}

std::vector<TokenId> Sorted(std::span<const TokenId> ids) {
  std::vector<TokenId> sorted(ids.begin(), ids.end());
  std::ranges::sort(sorted);
  return sorted;
}

}  // namespace

EngineCore::EngineCore(const CoreConfig& config)
    : config_(Checked(config)),
      cache_(config.num_blocks, config.block_tokens, config.prefix_reuse, &scopes_),
      requests_(config.max_requests),
      batcher_({.block_tokens = config.block_tokens,
                .max_rows = config.max_rows,
                .max_step_tokens = config.max_step_tokens,
                .chunk_tokens = config.chunk_tokens}),
      sets_(static_cast<std::size_t>(config.num_buffer_sets)) {
  for (SlotId slot = config.max_rows - 1; slot >= 0; --slot) {
    free_slots_.push_back(slot);
  }
}

std::int32_t EngineCore::min_table_deltas() const {
  // No chain is longer than a context, and the last token of one is never computed.
  const std::int64_t per_context = BlocksFor(config_.max_context_tokens - 1, config_.block_tokens);
  const std::int64_t num_rows = config_.max_rows;
  return static_cast<std::int32_t>(std::min(per_context * num_rows, per_context + 2 * num_rows));
}

void EngineCore::RegisterBuffers(std::int32_t set_index, const StepBuffers& buffers) {
  Require(set_index >= 0 && set_index < config_.num_buffer_sets,
          "set_index " + std::to_string(set_index) + " is not below num_buffer_sets, " +
              std::to_string(config_.num_buffer_sets));
  Require(buffers.max_table_deltas >= min_table_deltas(),
          "table_delta has room for " + std::to_string(buffers.max_table_deltas) +
              " and needs it for " + std::to_string(min_table_deltas()) +
              ": the blocks of one context and two a row, or those of a context for each row");
  BufferSet& set = sets_[static_cast<std::size_t>(set_index)];
  ANTIPHON_CHECK(set.step == 0);
  set.buffers = buffers;
  set.registered = true;
}

Handle EngineCore::Submit(const SubmitSpec& spec) {
  CheckSpec(spec);
  const auto num_prompt = static_cast<std::int32_t>(spec.prompt.size());
  const std::int32_t output_limit =
      std::min(spec.max_output_tokens, config_.max_context_tokens - num_prompt);
  const std::int32_t num_blocks_needed =
      NoEvictCapacity::BlocksToCompletion(num_prompt, output_limit, config_.block_tokens);
  if (num_blocks_needed > config_.num_blocks - 1) {
    throw NeverFitsError(num_blocks_needed, config_.num_blocks - 1);
  }
  Request& request = requests_.Add();
  request.epoch = 1;
  request.arrival = next_arrival_++;
  request.priority = spec.priority;
  request.leader = spec.leader;
  request.tokens.assign(spec.prompt.begin(), spec.prompt.end());
  if (cache_.reuses_prefixes()) {
    request.prompt_hashes = HashBlocks(request.tokens, config_.block_tokens);
  }
  request.num_prompt = num_prompt;
  request.max_output = spec.max_output_tokens;
  request.output_limit = output_limit;
  request.end_ids = Sorted(spec.end_ids);
  request.stop_ids = Sorted(spec.stop_ids);
  request.seed = spec.seed;
  request.output_index = spec.output_index;
  request.flags = spec.flags;
  request.adapter = spec.adapter;
  request.num_blocks_needed = num_blocks_needed;
  request.chain.scope = spec.scope;
  scopes_.AddUse(spec.scope);
  ++num_waiting_;
  Enqueue(request);
  return request.handle;
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
  Require(keep_output_tokens >= 0, "keep_output_tokens must not be negative");
  Request* request = requests_.Find(handle);
  if (request == nullptr || !request->live()) {
    return false;
  }
  End(*request, request->num_prompt + std::min(keep_output_tokens, request->num_output()));
  return true;
}

void EngineCore::Commit(StepId step) {
  const auto set = std::ranges::find(sets_, step, &BufferSet::step);
  Check(step > 0 && set != sets_.end(), "a step is committed that is not in flight");
  const StepBuffers& buffers = set->buffers;
  const std::int32_t num_requests = requests_.num_requests();
  for (std::size_t row = 0; row < set->rows.size(); ++row) {
    std::int32_t* result = buffers.result + row * kResultColumns;
    std::fill_n(result, kResultColumns, 0);
    CommitRow(set->rows[row], buffers.tokens[row], buffers.num_tokens[row], result);
  }
  if (requests_.num_requests() < num_requests) {
    std::erase_if(running_, [this](Handle handle) { return requests_.Find(handle) == nullptr; });
  }
  set->step = 0;
  --num_steps_in_flight_;
}

std::int32_t EngineCore::MatchPrefix(ScopeId scope, std::span<const TokenId> tokens) const {
  const std::vector<std::uint64_t> hashes = HashBlocks(tokens, config_.block_tokens);
  PrefixMatch match;
  cache_.Match(scope, tokens, hashes, static_cast<std::int32_t>(hashes.size()), match);
  return static_cast<std::int32_t>(match.nodes.size()) * config_.block_tokens;
}

CoreStats EngineCore::stats() const {
  const BlockPool& pool = cache_.pool();
  return {
      .step = last_step_,
      .num_running = static_cast<std::int64_t>(running_.size()),
      .num_waiting = num_waiting_,
      .num_paused = 0,
      .num_blocks = pool.num_blocks() - 1,
      .num_blocks_used = pool.num_referenced(),
      .num_blocks_cached = pool.num_cached(),
      .num_blocks_free = pool.num_clean(),
      .num_prefilled_tokens_total = num_prefilled_,
      .num_reused_tokens_total = num_reused_,
      .num_generated_tokens_total = num_generated_,
      .num_preemptions_total = 0,
      .num_evictions_total = cache_.num_evictions(),
  };
}

void EngineCore::CheckSpec(const SubmitSpec& spec) const {
  Require(!spec.prompt.empty(), "the prompt is empty");
  Require(spec.prompt.size() < static_cast<std::size_t>(config_.max_context_tokens),
          "the prompt's " + std::to_string(spec.prompt.size()) +
              " tokens and one of output exceed the context of " +
              std::to_string(config_.max_context_tokens));
  Require(std::ranges::all_of(spec.prompt, [](TokenId token) { return token >= 0; }),
          "the prompt has a negative token id");
  Require(spec.max_output_tokens >= 1, "max_output_tokens must be at least 1");
  Require(spec.output_index >= 0, "output_index must not be negative");
  Require(spec.adapter >= 0, "adapter must not be negative");
  Require(spec.flags % kFirstCallerFlag == 0, "the flags below 1 << 8 are the core's own");
  Require(scopes_.Contains(spec.scope), "scope " + std::to_string(spec.scope) + " is not known");
}

// Puts a waiting request where it belongs: behind its leader, or into the queue.
void EngineCore::Enqueue(Request& request) {
  Request* leader = requests_.Find(request.leader);
  if (leader != nullptr && leader->live() && leader->state != RequestState::kDecode) {
    request.state = RequestState::kWaitLeader;
    leader->followers.push_back(request.handle);
    return;
  }
  request.state = RequestState::kQueued;
  queue_.Add(request);
}

void EngineCore::CommitRow(const PlannedRow& row, TokenId token, std::int32_t num_tokens,
                           std::int32_t* result) {
  Request* found = requests_.Find(row.handle);
  ANTIPHON_CHECK(found != nullptr);  // a request with a row in flight keeps its place
  Request& request = *found;
  request.num_inflight -= row.q_len;
  if (row.epoch != request.epoch) {
    if (request.num_inflight == 0) {
      Free(request, request.num_wanted);
    }
    return;
  }
  Publish(request);
  result[3] = request.num_steps;
  if (!row.samples) {
    return;
  }
  Check(num_tokens == 1 && token >= 0, "a row that samples brought no token");
  const FinishReason reason = AppendToken(request, token);
  result[0] = 1;
  result[1] = static_cast<std::int32_t>(reason);
  result[2] = request.num_output();
  if (request.state == RequestState::kPrefill) {
    request.state = RequestState::kDecode;
    WakeFollowers(request);
  }
  if (reason != FinishReason::kNone) {
    Free(request, kKeepAll);
  }
}

void EngineCore::Publish(Request& request) {
  if (!cache_.reuses_prefixes()) {
    return;
  }
  const auto width = static_cast<std::size_t>(config_.block_tokens);
  BlockChain& chain = request.chain;
  while ((chain.num_published + 1) * config_.block_tokens <= request.num_settled()) {
    const auto index = static_cast<std::size_t>(chain.num_published);
    const auto tokens = std::span<const TokenId>(request.tokens).subspan(index * width, width);
    const std::uint64_t hash =
        index < request.prompt_hashes.size() ? request.prompt_hashes[index] : HashTokens(tokens);
    cache_.PublishNext(chain, hash, tokens);
  }
}

FinishReason EngineCore::AppendToken(Request& request, TokenId token) {
  request.tokens.push_back(token);
  ++num_generated_;
  if (std::ranges::binary_search(request.end_ids, token)) {
    return FinishReason::kEndId;
  }
  if (std::ranges::binary_search(request.stop_ids, token)) {
    return FinishReason::kStopId;
  }
  if (request.num_output() >= request.max_output) {
    return FinishReason::kMaxOutputTokens;
  }
  if (request.num_output() >= request.output_limit) {
    return FinishReason::kContextFull;
  }
  return FinishReason::kNone;
}

void EngineCore::WakeFollowers(Request& request) {
  for (const Handle handle : std::exchange(request.followers, {})) {
    Request& follower = *requests_.Find(handle);
    follower.state = RequestState::kQueued;
    queue_.Add(follower);
  }
}

// Ends a request from outside. What a step in flight may still write is held until its commit.
void EngineCore::End(Request& request, std::int32_t num_wanted_tokens) {
  WakeFollowers(request);
  if (request.waiting()) {
    --num_waiting_;
    queue_.Remove(request);
    if (Request* leader = requests_.Find(request.leader); leader != nullptr) {
      std::erase(leader->followers, request.handle);
    }
  } else {
    std::erase(running_, request.handle);
  }
  if (request.num_inflight == 0) {
    Free(request, num_wanted_tokens);
    return;
  }
  request.state = RequestState::kDraining;
  request.num_wanted = num_wanted_tokens;
  ++request.epoch;
}

// The only place where a request's blocks, reservation, slot and place are given back.
void EngineCore::Free(Request& request, std::int32_t num_wanted_tokens) {
  if (request.slot != kNoSlot) {
    capacity_.Settle(request.num_blocks_needed -
                     static_cast<std::int32_t>(request.chain.blocks.size()));
    free_slots_.push_back(request.slot);
    request.slot = kNoSlot;
  }
  scopes_.DropUse(request.chain.scope);
  cache_.Release(request.chain, num_wanted_tokens / config_.block_tokens);
  requests_.Remove(request);
}

}  // namespace antiphon
