// The life of a request: queued (or waiting for its leader), admitted with memory, prefilled in
// chunks, decoded one token a step, ended; and, where memory was promised too boldly, paused and
// admitted again, as after a hold. How steps are planned is in planning.cc, admission.cc and
// pausing.cc; what comes of them in committing.cc; holds are in holding.cc.
#include "antiphon/engine_core.h"

#include <algorithm>

namespace antiphon {

namespace {

void Require(bool holds, const std::string& message) {
  if (!holds) {
    throw std::invalid_argument(message);
  }
}

// A whole context fits into one chain; the last token of one is never computed.
std::int32_t BlocksOfContext(const CoreConfig& config) {
  return BlocksFor(config.max_context_tokens - 1, config.block_tokens);
}

void CheckLimits(const CoreConfig& config) {
  Require(config.num_blocks >= 2, "num_blocks must be at least 2: scratch and one more");
  Require(config.block_tokens >= 1, "block_tokens must be at least 1");
  Require(config.max_rows >= 1, "max_rows must be at least 1");
  Require(config.max_step_tokens >= config.block_tokens,
          "max_step_tokens must be at least block_tokens, so that a prompt gets on");
  Require(config.max_context_tokens >= 2, "max_context_tokens must be at least 2");
  Require(config.max_requests >= 1, "max_requests must be at least 1");
  Require(config.chunk_tokens == 0 || config.chunk_tokens >= config.block_tokens,
          "chunk_tokens must be 0 or at least block_tokens");
}

void CheckPolicies(const CoreConfig& config) {
  Require(config.run_ahead >= 0 && config.run_ahead <= 2, "run_ahead must be 0, 1 or 2");
  Require(config.num_buffer_sets > config.run_ahead,
          "num_buffer_sets must be more than run_ahead: the steps in flight and the one planned");
  Require(config.watermark_blocks >= -1, "watermark_blocks must be at least 0, or -1");
  Require(config.cooldown_steps >= 0, "cooldown_steps must not be negative");
  Require(config.bypass_requests >= 0, "bypass_requests must not be negative");
  Require(config.bypass_steps >= 0, "bypass_steps must not be negative");
  Require(config.num_host_blocks >= 0, "num_host_blocks must not be negative");
  Require(config.max_step_copies >= 0, "max_step_copies must not be negative");
  Require(config.offload_min_priority >= 0 &&
              config.offload_min_priority <= Retention::kMaxPriority + 1,
          "offload_min_priority must be from 0 to 101");
  Require(config.offload_min_hits >= 0, "offload_min_hits must not be negative");
  Require(config.onload_cost_tokens >= 0, "onload_cost_tokens must not be negative");
  Require(config.onload_block_cost_tokens >= 0, "onload_block_cost_tokens must not be negative");
  Require(config.num_kv_events >= 0, "num_kv_events must not be negative");
  Require(config.max_sessions >= 1, "max_sessions must be at least 1");
  Require(config.stall_passes >= 1, "stall_passes must be at least 1");
  Require(config.faults.pause_every >= 0, "pause_every must not be negative");
  Require(config.faults.miss_every >= 0, "miss_every must not be negative");
  Require(config.faults.fail_host_allocation_every >= 0,
          "fail_host_allocation_every must not be negative");
  Require(config.faults.max_admissions >= 0, "max_admissions must not be negative");
}

// Returns the configuration with its defaults worked out.
CoreConfig Checked(CoreConfig config) {
  CheckLimits(config);
  CheckPolicies(config);
  if (config.max_step_copies == 0) {
    config.max_step_copies = BlocksOfContext(config) + config.max_rows;
  }
  return config;
}

KvCacheConfig CacheConfig(const CoreConfig& config) {
  return {.num_blocks = config.num_blocks,
          .block_tokens = config.block_tokens,
          .num_host_blocks = config.num_host_blocks,
          .prefix_reuse = config.prefix_reuse,
          .partial_reuse = config.partial_reuse,
          .offload_min_priority = config.offload_min_priority,
          .offload_min_hits = config.offload_min_hits,
          .onload_cost_tokens = config.onload_cost_tokens,
          .onload_block_cost_tokens = config.onload_block_cost_tokens,
          .num_kv_events = config.num_kv_events,
          .fail_host_allocation_every = config.faults.fail_host_allocation_every};
}

std::vector<TokenId> Sorted(std::span<const TokenId> ids) {
  std::vector<TokenId> sorted(ids.begin(), ids.end());
  std::ranges::sort(sorted);
  return sorted;
}

}  // namespace

EngineCore::EngineCore(const CoreConfig& config)
    : config_(Checked(config)),
      cache_(CacheConfig(config_), &scopes_),
      sessions_(static_cast<std::size_t>(config.max_sessions), &cache_),
      requests_(config.max_requests),
      capacity_({.policy = config.capacity_policy,
                 .num_blocks = config.num_blocks - 1,
                 .watermark_blocks = config.watermark_blocks,
                 .cooldown_steps = config.cooldown_steps}),
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
  const std::int64_t per_context = BlocksOfContext(config_);
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
  Require(buffers.max_copies >= config_.max_step_copies,
          "copy_ops has room for " + std::to_string(buffers.max_copies) +
              " and needs it for max_step_copies, " + std::to_string(config_.max_step_copies));
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
  // The last output token is never computed.
  const std::int32_t num_blocks_needed =
      BlocksFor(static_cast<std::int64_t>(num_prompt) + output_limit - 1, config_.block_tokens);
  if (num_blocks_needed > config_.num_blocks - 1) {
    throw NeverFitsError(num_blocks_needed, config_.num_blocks - 1);
  }
  Request& request = requests_.Add();
  request.epoch = 1;
  request.arrival = next_arrival_++;
  requests_.times(request).arrival_ns = spec.arrival_ns;
  request.priority = spec.priority;
  request.session = spec.session;
  request.leader = spec.leader;
  request.tokens.assign(spec.prompt.begin(), spec.prompt.end());
  if (cache_.reuses_prefixes()) {
    request.block_hashes = HashBlocks(request.tokens, config_.block_tokens);
  }
  request.num_prompt = num_prompt;
  request.num_reusable = spec.num_reusable;
  request.max_output = spec.max_output_tokens;
  request.output_limit = output_limit;
  request.end_ids = Sorted(spec.end_ids);
  request.stop_ids = Sorted(spec.stop_ids);
  for (const std::span<const TokenId> ids : {spec.end_ids, spec.stop_ids}) {
    for (const TokenId token : ids) {
      request.end_filter |= FilterBit(token);
    }
  }
  request.draws = Draws(spec.seed, static_cast<std::uint32_t>(spec.output_index));
  request.flags = spec.flags;
  request.adapter = spec.adapter;
  request.blocks_to_completion = num_blocks_needed;
  request.chain.scope = spec.scope;
  request.chain.retention = spec.retention;
  scopes_.AddUse(spec.scope);
  ++num_waiting_;
  Enqueue(request);
  return request.handle;
}

std::int32_t EngineCore::MatchPrefix(ScopeId scope, std::span<const TokenId> tokens) const {
  const std::vector<std::uint64_t> hashes = HashBlocks(tokens, config_.block_tokens);
  PrefixMatch match;
  cache_.Match(scope, tokens, hashes, static_cast<std::int32_t>(tokens.size()), match);
  return static_cast<std::int32_t>(match.nodes.size()) * config_.block_tokens;
}

std::span<const TokenId> EngineCore::Tokens(Handle handle) const {
  const Request* request = requests_.Find(handle);
  return request == nullptr ? std::span<const TokenId>() : request->tokens;
}

std::optional<RequestTimes> EngineCore::Times(Handle handle) const {
  const RequestTimes* known = requests_.FindTimes(handle);
  if (known == nullptr) {
    return std::nullopt;
  }
  RequestTimes times = *known;
  if (const Request* request = requests_.Find(handle); request != nullptr && request->live()) {
    request->TellSteps(times);
  }
  return times;
}

bool EngineCore::RewindSession(std::uint64_t session, std::int64_t num_tokens) {
  Require(num_tokens >= 0, "num_tokens must not be negative");
  return sessions_.Rewind(session, num_tokens);
}

bool EngineCore::ForkSession(std::uint64_t session, std::uint64_t new_session) {
  Require(new_session != 0 && new_session != session,
          "new_session must be another session, and not 0");
  return sessions_.Fork(session, new_session);
}

bool EngineCore::CloseSession(std::uint64_t session) {
  for (const Handle handle : requests_.HandlesOf(session)) {
    requests_.Find(handle)->session = 0;  // its end must not bring the session back
  }
  return sessions_.Close(session);
}

CoreStats EngineCore::stats() const {
  const BlockPool& pool = cache_.device();
  return {
      .step = last_step_,
      .num_running = static_cast<std::int64_t>(running_.size()),
      .num_waiting = num_waiting_ - num_paused_,
      .num_paused = num_paused_,
      .num_held = num_held_,
      .num_blocks = pool.num_blocks() - 1,
      .num_blocks_used = pool.num_referenced(),
      .num_blocks_cached = pool.num_cached(),
      .num_blocks_free = pool.num_clean(),
      .num_host_blocks = config_.num_host_blocks,
      .num_host_blocks_used = config_.num_host_blocks - cache_.host().num_clean(),
      .num_prefilled_tokens_total = num_prefilled_,
      .num_recomputed_tokens_total = num_recomputed_,
      .num_reused_tokens_total = num_reused_,
      .num_generated_tokens_total = num_generated_,
      .num_preemptions_total = num_preemptions_,
      .num_evictions_total = cache_.num_evictions(),
      .num_offloads_total = cache_.num_offloads(),
      .num_onloads_total = cache_.num_onloads(),
      .num_copies_on_write_total = cache_.num_copies_on_write(),
      .num_deferrals_total = num_deferrals_,
      .num_bypasses_total = num_bypasses_,
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
  Require(spec.num_reusable >= 0, "num_reusable must not be negative");
  Require(spec.flags % kFirstCallerFlag == 0, "the flags below 1 << 8 are the core's own");
  Require(spec.retention.priority >= 0 && spec.retention.priority <= Retention::kMaxPriority,
          "retention_priority must be from 0 to 100");
  Require(spec.retention.duration_us >= 0, "retention_us must not be negative");
  Require(scopes_.Contains(spec.scope), "scope " + std::to_string(spec.scope) + " is not known");
}

// Puts a request that has not started where it belongs: behind its leader, or into the queue.
void EngineCore::Enqueue(Request& request) {
  Request* leader = requests_.Find(request.leader);
  if (leader != nullptr && leader->live() && !leader->held &&
      leader->num_settled() < leader->num_prompt) {
    request.state = RequestState::kWaitLeader;
    leader->followers.push_back(request.handle);
    return;
  }
  request.state = RequestState::kQueued;
  queue_.Add(request);
}

}  // namespace antiphon
