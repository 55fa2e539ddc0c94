#include "traffic.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <string>

namespace antiphon::soak {

namespace {

constexpr std::int32_t kNumSystemPrompts = 64;
constexpr std::int32_t kMaxSystemPrompt = 160;
constexpr std::int32_t kNumTenants = 3;
constexpr std::size_t kMaxSessions = 96;
constexpr std::int32_t kTextTokens = 1 << 17;  // tokens that users say
constexpr double kGapUs = 500;
constexpr double kLiveToHalveRate = 16;
constexpr double kBurstChance = 0.004;
constexpr std::int32_t kMaxBurst = 120;
constexpr double kRestUs = 8000;
constexpr double kSitOutUs = 2000;

// One of 85 outputs of a vocabulary of 512 ends a request, and one of 256 may stop it.
constexpr std::array<TokenId, 6> kEndIds = {0, 1, 2, 3, 4, 5};
constexpr std::array<TokenId, 2> kStopIds = {5, 6};

}  // namespace

Traffic::Traffic(const TrafficConfig& config) : config_(config), dice_(config.seed) {
  double sum = 0;
  for (std::int32_t rank = 1; rank <= kNumSystemPrompts; ++rank) {
    std::vector<TokenId> prompt;
    Say(prompt, dice_.Between(0, kMaxSystemPrompt));
    system_prompts_.push_back(std::move(prompt));
    popularity_.push_back(sum += 1.0 / rank);
  }
}

void Traffic::Act(GhostEngine& engine, std::int64_t now_us) {
  for (const auto& [handle, keep] : std::exchange(to_finish_, {})) {
    if (engine.IsLive(handle)) {
      EndFromOutside(engine, handle, keep);
      ++counts_.num_finished;
    }
  }
  while (!aborts_.empty() && aborts_.begin()->first <= now_us) {
    const Handle handle = aborts_.begin()->second;
    aborts_.erase(aborts_.begin());
    if (engine.IsLive(handle)) {
      EndFromOutside(engine, handle, -1);
      ++counts_.num_aborted;
    }
  }
  HoldAndRelease(engine, now_us);
  SitOutAndRejoin(engine, now_us);
  while (!done() && next_arrival_us_ <= now_us) {
    Arrive(engine, now_us);
    ScheduleArrival(next_arrival_us_, engine.num_live());
  }
}

std::int64_t Traffic::next_us() const {
  const std::int64_t never = std::numeric_limits<std::int64_t>::max();
  std::int64_t next = done() ? never : next_arrival_us_;
  for (const auto* due : {&aborts_, &holds_, &releases_, &sit_outs_, &rejoins_}) {
    next = due->empty() ? next : std::min(next, due->begin()->first);
  }
  return next;
}

void Traffic::HoldAndRelease(GhostEngine& engine, std::int64_t now_us) {
  while (!holds_.empty() && holds_.begin()->first <= now_us) {
    const Handle handle = holds_.begin()->second;
    holds_.erase(holds_.begin());
    if (engine.Hold(handle)) {
      queue_.OnHold(handle);
      ++counts_.num_holds;
      const double mean_us = dice_.Chance(0.9) ? kRestUs : 10 * kRestUs;
      releases_.emplace(now_us + static_cast<std::int64_t>(dice_.Exponential(mean_us)), handle);
    }
  }
  while (!releases_.empty() && releases_.begin()->first <= now_us) {
    const Handle handle = releases_.begin()->second;
    releases_.erase(releases_.begin());
    if (engine.Release(handle)) {
      if (!engine.Rests(handle)) {
        queue_.OnReturn(handle);
      }
      if (dice_.Chance(0.3)) {
        holds_.emplace(now_us + static_cast<std::int64_t>(dice_.Exponential(kRestUs)), handle);
      }
    }
  }
}

void Traffic::SitOutAndRejoin(GhostEngine& engine, std::int64_t now_us) {
  while (!sit_outs_.empty() && sit_outs_.begin()->first <= now_us) {
    const Handle handle = sit_outs_.begin()->second;
    sit_outs_.erase(sit_outs_.begin());
    if (engine.SitOut(handle)) {
      queue_.OnSitOut(handle);
      ++counts_.num_sit_outs;
      rejoins_.emplace(now_us + static_cast<std::int64_t>(dice_.Exponential(kSitOutUs)), handle);
    }
  }
  while (!rejoins_.empty() && rejoins_.begin()->first <= now_us) {
    const Handle handle = rejoins_.begin()->second;
    rejoins_.erase(rejoins_.begin());
    if (engine.Rejoin(handle)) {
      if (!engine.Rests(handle)) {
        queue_.OnReturn(handle);
      }
      if (dice_.Chance(0.8)) {
        sit_outs_.emplace(now_us + static_cast<std::int64_t>(dice_.Exponential(kSitOutUs)), handle);
      }
    }
  }
}

void Traffic::ScheduleArrival(std::int64_t now_us, std::size_t num_live) {
  if (burst_left_ > 0) {
    --burst_left_;
  } else {
    // The longer the queue, the fewer come: the core is busy, with bursts on top, but not lost.
    const double gap_us = kGapUs * std::exp2(static_cast<double>(num_live) / kLiveToHalveRate);
    next_arrival_us_ = now_us + 1 + static_cast<std::int64_t>(dice_.Exponential(gap_us));
    if (dice_.Chance(kBurstChance)) {
      burst_left_ = dice_.Between(10, kMaxBurst);
    }
  }
}

void Traffic::Arrive(GhostEngine& engine, std::int64_t now_us) {
  const double choice = dice_.Unit();
  if (choice < 0.5) {
    TakeTurn(engine, now_us);
  } else if (choice < 0.56) {
    AskForOutputs(engine, now_us);
  } else {
    AskOnce(engine, now_us);
  }
}

void Traffic::AskOnce(GhostEngine& engine, std::int64_t now_us) {
  std::vector<TokenId> prompt = SystemPrompt();
  // Few say much.
  Say(prompt, static_cast<std::int32_t>(std::min(dice_.LogNormal(20, 2.5), 2000.0)) + 1);
  Submit(engine, SomeSpec(ScopeOf(engine, dice_.Below(kNumTenants)), prompt), now_us);
}

void Traffic::AskForOutputs(GhostEngine& engine, std::int64_t now_us) {
  std::vector<TokenId> prompt = SystemPrompt();
  Say(prompt, dice_.Between(1, 60));
  SubmitSpec spec = SomeSpec(ScopeOf(engine, dice_.Below(kNumTenants)), prompt);
  const std::int32_t num_outputs = dice_.Between(2, 4);
  for (std::int32_t output = 0; output < num_outputs; ++output) {
    spec.output_index = output;
    const Handle handle = Submit(engine, spec, now_us);
    if (output == 0) {
      spec.leader = handle;
    }
  }
}

void Traffic::TakeTurn(GhostEngine& engine, std::int64_t now_us) {
  Session& session = SomeSession();
  if (session.turn != 0 && engine.IsLive(session.turn)) {
    AskOnce(engine, now_us);
    return;
  }
  const double choice = dice_.Unit();
  if (choice < 0.06) {
    ForkSession(engine, session);
  } else if (choice < 0.14) {
    RewindSession(engine, session);
  }
  if (room(session.log.size()) < 80 || dice_.Chance(0.03)) {
    CloseSession(engine, session.id);
    AskOnce(engine, now_us);
    return;
  }
  Say(session.log, dice_.Between(1, 60));
  SubmitSpec spec = SomeSpec(ScopeOf(engine, session.tenant), session.log);
  spec.session = session.id;
  spec.retention = {.priority = dice_.Chance(0.5) ? 50 : dice_.Between(0, 100),
                    .duration_us = dice_.Chance(0.5) ? 0 : dice_.Between(1, 300000)};
  session.turn = Submit(engine, spec, now_us);
  ++counts_.num_turns;
}

Traffic::Session& Traffic::SomeSession() {
  if (sessions_.size() < kMaxSessions && (sessions_.empty() || dice_.Chance(0.2))) {
    const std::uint64_t id = next_session_++;
    Session& session = sessions_[id];
    session = {.id = id, .tenant = dice_.Below(kNumTenants), .log = SystemPrompt()};
    return session;
  }
  return std::next(sessions_.begin(), dice_.Below(static_cast<std::int32_t>(sessions_.size())))
      ->second;
}

void Traffic::ForkSession(GhostEngine& engine, const Session& session) {
  if (sessions_.size() >= kMaxSessions) {
    return;
  }
  const std::uint64_t id = next_session_++;
  sessions_[id] = {.id = id, .tenant = session.tenant, .log = session.log};
  engine.core().ForkSession(session.id, id);
  ++counts_.num_forks;
}

void Traffic::RewindSession(GhostEngine& engine, Session& session) {
  if (session.log.empty()) {
    return;
  }
  session.log.resize(
      static_cast<std::size_t>(dice_.Below(static_cast<std::int32_t>(session.log.size()))));
  engine.core().RewindSession(session.id, static_cast<std::int64_t>(session.log.size()));
  ++counts_.num_rewinds;
}

void Traffic::CloseSession(GhostEngine& engine, std::uint64_t id) {
  engine.core().CloseSession(id);
  sessions_.erase(id);
  ++counts_.num_closes;
}

void Traffic::CloseSessions(GhostEngine& engine) {
  while (!sessions_.empty()) {
    CloseSession(engine, sessions_.begin()->first);
  }
}

Handle Traffic::Submit(GhostEngine& engine, SubmitSpec spec, std::int64_t now_us) {
  Handle handle = 0;
  try {
    handle = engine.Submit(spec);
  } catch (const QueueFullError&) {
    ghost::Expect(static_cast<std::int32_t>(engine.num_live()) +
                          2 * static_cast<std::int32_t>(engine.num_in_flight() + 1) *
                              engine.core().config().max_rows >=
                      config_.max_requests,
                  "the core says that it is full and is not");
    ++counts_.num_refused;
    return 0;
  }
  ++counts_.num_submitted;
  Ask ask = {.num_prompt = static_cast<std::int32_t>(spec.prompt.size()),
             .submit_step = step_,
             .session = spec.session};
  if (dice_.Chance(0.06)) {
    ask.stop_at = dice_.Between(1, 20);
    ask.stop_lag = dice_.Below(3);
  }
  if (dice_.Chance(0.06)) {
    const double mean_us = dice_.Chance(0.5) ? 2000 : 30000;
    aborts_.emplace(now_us + static_cast<std::int64_t>(dice_.Exponential(mean_us)), handle);
  }
  counts_.num_scored += spec.num_reusable < ask.num_prompt ? 1 : 0;
  ScheduleRests(now_us, handle);
  asks_[handle] = ask;
  queue_.OnSubmit(handle, spec.priority, ask.num_prompt, spec.leader != 0);
  return handle;
}

void Traffic::ScheduleRests(std::int64_t now_us, Handle handle) {
  if (dice_.Chance(0.06)) {
    holds_.emplace(now_us + static_cast<std::int64_t>(dice_.Exponential(kRestUs)), handle);
  }
  if (dice_.Chance(0.06)) {
    sit_outs_.emplace(now_us + static_cast<std::int64_t>(dice_.Exponential(kSitOutUs)), handle);
  }
}

// Aborts where `keep` is negative.
void Traffic::EndFromOutside(GhostEngine& engine, Handle handle, std::int32_t keep) {
  const Ask ask = asks_.at(handle);
  asks_.erase(handle);
  queue_.OnGone(handle);
  const std::span<const TokenId> known = engine.core().Tokens(handle);
  const auto num_kept = static_cast<std::size_t>(ask.num_prompt + std::max(keep, 0));
  ghost::Expect(known.size() >= num_kept, "the core does not know what it told");
  LeaveSession(ask, known.first(num_kept));
  if (keep < 0) {
    engine.Abort(handle);
  } else {
    engine.Finish(handle, keep);
  }
}

void Traffic::LeaveSession(const Ask& ask, std::span<const TokenId> tokens) {
  if (const auto found = sessions_.find(ask.session); found != sessions_.end()) {
    found->second.log.assign(tokens.begin(), tokens.end());
    found->second.turn = 0;
  }
}

void Traffic::OnStart(Handle handle, std::int32_t num_reused) {
  const Ask& ask = asks_.at(handle);
  queue_.OnStart(handle, step_ - ask.submit_step);
  counts_.num_prompt_tokens += ask.num_prompt;
  counts_.num_reused_tokens += num_reused;
}

void Traffic::OnToken(Handle handle, std::int32_t num_output) {
  const Ask& ask = asks_.at(handle);
  if (ask.stop_at != 0 && num_output == ask.stop_at + ask.stop_lag) {
    to_finish_.emplace_back(handle, ask.stop_at);
  }
}

void Traffic::OnEnd(Handle handle, Stream& stream, std::int32_t num_output) {
  const Ask ask = asks_.at(handle);
  asks_.erase(handle);
  ++counts_.num_ended;
  LeaveSession(ask, stream.tokens(stream.num_prompt() + num_output));
}

ScopeId Traffic::ScopeOf(GhostEngine& engine, std::int32_t tenant) {
  return engine.core().InternScope({.tenant = "tenant" + std::to_string(tenant),
                                    .cache_scope = "",
                                    .adapter = "",
                                    .weights = "1"});
}

std::vector<TokenId> Traffic::SystemPrompt() {
  const double point = dice_.Unit() * popularity_.back();
  const auto found = std::ranges::lower_bound(popularity_, point);
  return system_prompts_[static_cast<std::size_t>(found - popularity_.begin())];
}

void Traffic::Say(std::vector<TokenId>& log, std::int32_t num_tokens) {
  for (std::int32_t left = std::min(num_tokens, room(log.size()) - 1); left > 0; --left) {
    log.push_back(dice_.Below(kTextTokens));
  }
}

SubmitSpec Traffic::SomeSpec(ScopeId scope, const std::vector<TokenId>& prompt) {
  const bool is_scored = dice_.Chance(0.05);
  return {.prompt = prompt,
          .scope = scope,
          .max_output_tokens = dice_.Chance(0.02) ? 1 : dice_.Between(2, 120),
          .end_ids = kEndIds,
          .stop_ids =
              dice_.Chance(0.5) ? std::span<const TokenId>(kStopIds) : std::span<const TokenId>(),
          .seed = dice_.Bits(),
          .priority = dice_.Chance(0.8) ? 50 : dice_.Between(0, 100),
          .flags = is_scored ? std::uint32_t{kFlagPromptLogprobs} : 0,
          .retention = {},
          .num_reusable =
              is_scored ? dice_.Below(static_cast<std::int32_t>(prompt.size()) + 1) : kAllTokens};
}

// Tokens that fit into the context behind so many.
std::int32_t Traffic::room(std::size_t num_tokens) const {
  return config_.max_context_tokens - static_cast<std::int32_t>(num_tokens);
}

}  // namespace antiphon::soak
