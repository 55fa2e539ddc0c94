#include "command_stream.h"

#include <algorithm>
#include <array>
#include <stdexcept>

namespace antiphon::fuzz {

namespace {

using ghost::Expect;

constexpr std::int32_t kVocabulary = 12;
constexpr std::array<TokenId, 1> kEndIds = {0};
constexpr std::array<TokenId, 1> kStopIds = {1};
constexpr std::uint64_t kNumSessions = 3;
constexpr std::int32_t kMaxRequests = 8;
// One of four asks what the model says of its prompt.
constexpr std::uint64_t kFirstSeedOfScores = 192;
// More steps than any of these requests can need, paused as often as the knobs allow.
constexpr std::int32_t kMaxTurnsToTheEnd = 20000;

}  // namespace

CommandStream::CommandStream(std::span<const std::uint8_t> bytes) : bytes_(bytes) {}

bool CommandStream::Run() {
  config_ = ReadConfig();
  try {
    engine_ = std::make_unique<ghost::GhostEngine>(
        config_, ghost::GhostEngine::Options{.vocabulary = kVocabulary}, this);
  } catch (const std::invalid_argument&) {
    return false;
  }
  while (!bytes_.empty()) {
    Obey();
    engine_->core().CheckInvariants();
  }
  RunToTheEnd();
  return true;
}

CoreConfig CommandStream::ReadConfig() {
  CoreConfig config;
  config.block_tokens = bytes_.Between(1, 4);
  config.num_blocks = bytes_.Between(2, 13);
  config.max_rows = bytes_.Between(1, 4);
  config.max_step_tokens = config.block_tokens + bytes_.Between(0, 8);
  config.max_context_tokens = bytes_.Between(2, 24);
  config.max_requests = kMaxRequests;
  config.chunk_tokens = bytes_.Next() % 2 == 0 ? 0 : config.block_tokens * bytes_.Between(1, 2);
  config.run_ahead = bytes_.Between(0, 2);
  config.num_buffer_sets = config.run_ahead + bytes_.Between(1, 2);
  config.capacity_policy =
      std::array{CapacityPolicy::kMaxUtilization, CapacityPolicy::kGuaranteedNoEvict,
                 CapacityPolicy::kStaticBatch}[bytes_.Between(0, 2)];
  config.chunk_policy =
      bytes_.Next() % 2 == 0 ? ChunkPolicy::kFirstComeFirstServed : ChunkPolicy::kEqualProgress;
  config.watermark_blocks = bytes_.Between(-1, 2);
  config.cooldown_steps = bytes_.Between(0, 3);
  config.bypass_requests = bytes_.Between(0, 3);
  config.bypass_steps = bytes_.Between(0, 5);
  const std::int32_t cache = bytes_.Next();
  config.prefix_reuse = cache % 16 != 15;
  config.partial_reuse = (cache & 16) == 0;
  config.prefix_deferral = (cache & 32) == 0;
  config.num_host_blocks = (cache & 64) == 0 ? 0 : bytes_.Between(1, 6);
  config.max_step_copies = bytes_.Between(0, 4);
  const std::int32_t tier = bytes_.Next();
  config.offload_min_priority = (tier & 1) == 0 ? 0 : 60;
  config.offload_min_hits = (tier & 2) == 0 ? 0 : 1;
  config.onload_cost_tokens = (tier & 4) == 0 ? 0 : 3;
  config.onload_block_cost_tokens = (tier & 8) == 0 ? 0 : 1;
  config.num_kv_events = (tier & 16) == 0 ? 6 : 4096;
  config.max_sessions = (tier & 32) == 0 ? 2 : 16;
  config.faults.pause_every = bytes_.Next() % 2 == 0 ? 0 : bytes_.Between(1, 5);
  config.faults.miss_every = bytes_.Next() % 4 != 3 ? 0 : bytes_.Between(1, 3);
  config.faults.fail_host_allocation_every = bytes_.Next() % 4 != 3 ? 0 : bytes_.Between(1, 3);
  return config;
}

void CommandStream::Obey() {
  const std::int32_t byte = bytes_.Next();
  const std::int32_t command = byte % 32;
  if (byte >= 224) {
    Rest(command);
  } else if (command < 8) {
    Submit();
  } else if (command < 10) {
    Abort();
  } else if (command < 12) {
    Finish();
  } else if (command < 17) {
    Plan();
  } else if (command < 21) {
    if (engine_->can_execute()) {
      engine_->Execute();
    }
  } else if (command < 26) {
    if (engine_->can_commit()) {
      engine_->Commit();
    }
  } else if (command < 29) {
    Session();
  } else if (command == 29) {
    now_us_ += bytes_.Next() * bytes_.Next();
  } else if (command == 30) {
    engine_->core().FlushPrefixCache();
  } else {
    CheckEvents();
  }
}

void CommandStream::Submit() {
  const std::uint64_t session = static_cast<std::uint64_t>(bytes_.Between(0, kNumSessions));
  const std::vector<TokenId> prompt = SomePrompt(session);
  const std::int32_t odds = bytes_.Next();
  const ScopeId scope = engine_->core().InternScope(
      {.tenant = odds % 8 == 7 ? "b" : "a", .cache_scope = "", .adapter = "", .weights = ""});
  SubmitSpec spec = {.prompt = prompt,
                     .scope = scope,
                     .max_output_tokens = bytes_.Between(1, 12),
                     .end_ids = kEndIds,
                     .stop_ids = kStopIds,
                     .seed = static_cast<std::uint64_t>(bytes_.Next()),
                     .output_index = (odds & 8) == 0 ? 0 : 1,
                     .priority = (odds & 16) == 0 ? 50 : bytes_.Between(0, 100),
                     .leader = (odds & 32) == 0 || handles_.empty() ? 0 : handles_.back(),
                     .session = session,
                     .retention = {.priority = (odds & 64) == 0 ? 50 : bytes_.Between(0, 100),
                                   .duration_us = (odds & 128) == 0 ? 0 : bytes_.Between(1, 200)}};
  if (spec.seed >= kFirstSeedOfScores) {
    spec.flags = kFlagPromptLogprobs;
    spec.num_reusable = static_cast<std::int32_t>(spec.seed - kFirstSeedOfScores) % 16;
  }
  try {
    const Handle handle = engine_->Submit(spec);
    handles_.push_back(handle);
    num_outputs_[handle] = 0;
    if (session != 0) {
      sessions_[handle] = session;
    }
  } catch (const NeverFitsError& error) {
    Expect(error.needed() > config_.num_blocks - 1, "a request that fits is said never to");
  } catch (const QueueFullError&) {
    Expect(engine_->num_live() > 0 || engine_->num_in_flight() > 0,
           "an empty core says that it is full");
  } catch (const std::invalid_argument&) {
    Expect(static_cast<std::int32_t>(prompt.size()) >= config_.max_context_tokens,
           "a good request is refused");
  }
}

// A session's conversation goes on; other prompts share their beginnings with each other.
std::vector<TokenId> CommandStream::SomePrompt(std::uint64_t session) {
  std::vector<TokenId> prompt;
  if (const auto log = logs_.find(session); log != logs_.end()) {
    prompt = log->second;
  }
  const std::int32_t num_more = bytes_.Between(1, prompt.empty() ? config_.max_context_tokens : 4);
  const std::int32_t num_shared = bytes_.Between(0, num_more);
  for (std::int32_t i = 0; i < num_more; ++i) {
    prompt.push_back(i < num_shared ? kVocabulary + i % 3 : kVocabulary + bytes_.Between(0, 3));
  }
  return prompt;
}

void CommandStream::Abort() {
  const Handle handle = SomeHandle();
  if (engine_->Abort(handle)) {
    num_outputs_.erase(handle);
    sessions_.erase(handle);
  }
}

void CommandStream::Finish() {
  const Handle handle = SomeHandle();
  const auto found = num_outputs_.find(handle);
  const std::int32_t num_output = found == num_outputs_.end() ? 0 : found->second;
  if (engine_->Finish(handle, bytes_.Between(0, num_output))) {
    num_outputs_.erase(handle);
    sessions_.erase(handle);
  }
}

void CommandStream::Rest(std::int32_t command) {
  if (command >= 27) {
    Withhold();
    return;
  }
  const Handle handle = SomeHandle();
  if (command < 12) {
    engine_->Hold(handle);
  } else if (command < 18) {
    engine_->Release(handle);
  } else if (command < 22) {
    engine_->SitOut(handle);
  } else {
    engine_->Rejoin(handle);
  }
}

// Executes a step of which some rows bring no token.
void CommandStream::Withhold() {
  const std::int32_t rows = bytes_.Next();
  if (engine_->can_execute()) {
    engine_->Execute([rows](std::int32_t row) { return (rows >> row & 1) != 0; });
  }
}

void CommandStream::Plan() {
  if (engine_->can_plan()) {
    ++now_us_;
    engine_->Plan(now_us_);
  }
}

void CommandStream::Session() {
  const std::int32_t choice = bytes_.Next();
  const auto session = static_cast<std::uint64_t>(bytes_.Between(1, kNumSessions));
  const auto log = logs_.find(session);
  switch (choice % 3) {
    case 0: {
      const std::uint64_t other = session % kNumSessions + 1;
      engine_->core().ForkSession(session, other);
      if (log != logs_.end()) {
        logs_[other] = log->second;
      }
      break;
    }
    case 1: {
      const std::int32_t num_tokens = bytes_.Between(0, config_.max_context_tokens);
      engine_->core().RewindSession(session, num_tokens);
      if (log != logs_.end() && log->second.size() > static_cast<std::size_t>(num_tokens)) {
        log->second.resize(static_cast<std::size_t>(num_tokens));
      }
      break;
    }
    default:
      engine_->core().CloseSession(session);
      logs_.erase(session);
  }
}

Handle CommandStream::SomeHandle() {
  const std::int32_t back = bytes_.Next();
  if (handles_.empty()) {
    return static_cast<Handle>(back);
  }
  return handles_[handles_.size() - 1 - static_cast<std::size_t>(back) % handles_.size()];
}

// Returns false where nothing is in flight and nothing can be planned.
bool CommandStream::Turn() {
  if (engine_->can_plan()) {
    const bool idle = engine_->num_in_flight() == 0;
    if (!engine_->Plan(++now_us_) && idle) {
      return false;
    }
  }
  if (engine_->can_execute()) {
    engine_->Execute();
  }
  if (engine_->can_commit()) {
    engine_->Commit();
  }
  engine_->core().CheckInvariants();
  return true;
}

// First as far as those come who do not sit out, then all.
void CommandStream::RunToTheEnd() {
  for (const Handle handle : handles_) {
    engine_->Release(handle);
  }
  std::int32_t num_turns = 0;
  if (engine_->num_sitting_out() > 0) {
    while (Turn()) {
      Expect(++num_turns < kMaxTurnsToTheEnd, "I17: requests do not come to their end");
    }
    engine_->CheckSittersHinderNobody();
  }
  for (const Handle handle : handles_) {
    engine_->Rejoin(handle);
  }
  while (engine_->num_live() > 0 || engine_->num_in_flight() > 0) {
    Expect(++num_turns < 2 * kMaxTurnsToTheEnd, "I17: requests do not come to their end");
    Expect(Turn(), "I17: requests are there, nothing is in flight, and nothing runs");
  }
  for (std::uint64_t session = 1; session <= kNumSessions; ++session) {
    engine_->core().CloseSession(session);
  }
  CheckEvents();
  engine_->CheckNothingLeft();
  CheckEvents();
  Expect(!knows_blocks_ || blocks_.empty(), "I10: events tell of blocks after a flush");
}

// Follows the events, or takes a snapshot where some were lost; both must agree.
void CommandStream::CheckEvents() {
  const KvCache& cache = engine_->core().cache();
  const KvSnapshot snapshot = cache.Snapshot();
  const KvEventBatch batch = cache.events().Read(last_event_, 1 << 20);
  if (batch.lost) {
    blocks_.clear();
    for (const KvEvent& block : snapshot.blocks) {
      blocks_[block.path_hash] = block;
    }
  }
  for (const KvEvent& event : batch.lost ? std::vector<KvEvent>() : batch.events) {
    if (event.kind == KvEventKind::kRemoved) {
      Expect(blocks_.erase(event.path_hash) == 1, "I10: a block is removed that was not there");
      Expect(std::ranges::none_of(blocks_,
                                  [&event](const auto& block) {
                                    return block.second.parent_hash == event.path_hash;
                                  }),
             "I10: a block is removed before its children");
      continue;
    }
    Expect(blocks_.contains(event.path_hash) == (event.kind == KvEventKind::kMoved),
           "I10: a block is stored twice, or moved before it is stored");
    blocks_[event.path_hash] = event;
  }
  last_event_ = snapshot.sequence;
  Expect(blocks_.size() == snapshot.blocks.size(), "I10: events and snapshot differ");
  for (const KvEvent& block : snapshot.blocks) {
    const auto found = blocks_.find(block.path_hash);
    Expect(found != blocks_.end() && found->second.tiers == block.tiers,
           "I10: events and snapshot differ about a block");
  }
}

void CommandStream::OnStart(Handle /*handle*/, std::int32_t /*num_reused*/) {}

void CommandStream::OnToken(Handle handle, std::int32_t num_output) {
  num_outputs_[handle] = num_output;
}

void CommandStream::OnEnd(Handle handle, ghost::Stream& stream, std::int32_t num_output) {
  num_outputs_.erase(handle);
  if (const auto found = sessions_.find(handle); found != sessions_.end()) {
    const auto tokens = stream.tokens(stream.num_prompt() + num_output);
    logs_[found->second].assign(tokens.begin(), tokens.end());
    sessions_.erase(found);
  }
}

}  // namespace antiphon::fuzz
