#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <unordered_map>
#include <utility>
#include <vector>

#include "dice.h"
#include "ghost_engine.h"
#include "queue_figures.h"

namespace antiphon::soak {

using ghost::Dice;
using ghost::GhostEngine;
using ghost::Stream;

struct TrafficConfig {
  std::uint64_t seed = 0;
  std::int64_t num_requests = 0;  // that the core accepts
  std::int32_t max_requests = 0;  // of the core
  std::int32_t max_context_tokens = 0;
  std::int32_t block_tokens = 0;
};

struct TrafficCounts {
  std::int64_t num_submitted = 0;
  std::int64_t num_refused = 0;  // the core was full
  std::int64_t num_ended = 0;    // by themselves
  std::int64_t num_aborted = 0;
  std::int64_t num_finished = 0;  // by a stop string
  std::int64_t num_holds = 0;
  std::int64_t num_sit_outs = 0;
  std::int64_t num_scored = 0;  // that may not reuse all of their prompt
  std::int64_t num_turns = 0;
  std::int64_t num_forks = 0;
  std::int64_t num_rewinds = 0;
  std::int64_t num_closes = 0;
  std::int64_t num_prompt_tokens = 0;  // of requests that started
  std::int64_t num_reused_tokens = 0;
};

// Users who come by Poisson and in bursts: single prompts behind shared system prompts (some much
// more popular than others), several outputs of one prompt, and sessions whose turns add to what
// was said, fork, rewind and close. Some abort, in any phase; some end by a stop string that the
// front end sees late; some are held for a while, perhaps again and again, and some sit out for
// moments. Some want to be told of their prompt, and so reuse no more than its beginning.
//
// Not thread-safe.
class Traffic : public ghost::Listener {
 public:
  explicit Traffic(const TrafficConfig& config);

  // Submits, aborts, finishes, holds, releases, and lets sit out and rejoin what is due.
  void Act(GhostEngine& engine, std::int64_t now_us);

  // All requests were submitted.
  bool done() const { return counts_.num_submitted >= config_.num_requests; }
  // When something is due next.
  std::int64_t next_us() const;
  void CloseSessions(GhostEngine& engine);

  const TrafficCounts& counts() const { return counts_; }
  const QueueFigures& queue() const { return queue_; }
  void set_step(std::int64_t step) { step_ = step; }

  void OnStart(Handle handle, std::int32_t num_reused) override;
  void OnToken(Handle handle, std::int32_t num_output) override;
  void OnEnd(Handle handle, Stream& stream, std::int32_t num_output) override;

 private:
  struct Session {
    std::uint64_t id = 0;
    std::int32_t tenant = 0;
    std::vector<TokenId> log;
    Handle turn = 0;  // that is under way
  };
  // What the front end knows of a request.
  struct Ask {
    std::int32_t num_prompt = 0;
    std::int64_t submit_step = 0;
    std::uint64_t session = 0;
    std::int32_t stop_at = 0;   // outputs at which a stop string is complete; 0: never
    std::int32_t stop_lag = 0;  // outputs that come meanwhile
  };

  void Arrive(GhostEngine& engine, std::int64_t now_us);
  void ScheduleArrival(std::int64_t now_us, std::size_t num_live);
  void AskOnce(GhostEngine& engine, std::int64_t now_us);
  void AskForOutputs(GhostEngine& engine, std::int64_t now_us);
  void TakeTurn(GhostEngine& engine, std::int64_t now_us);
  Session& SomeSession();
  void ForkSession(GhostEngine& engine, const Session& session);
  void RewindSession(GhostEngine& engine, Session& session);
  void CloseSession(GhostEngine& engine, std::uint64_t id);
  Handle Submit(GhostEngine& engine, SubmitSpec spec, std::int64_t now_us);
  void HoldAndRelease(GhostEngine& engine, std::int64_t now_us);
  void SitOutAndRejoin(GhostEngine& engine, std::int64_t now_us);
  void ScheduleRests(std::int64_t now_us, Handle handle);
  void EndFromOutside(GhostEngine& engine, Handle handle, std::int32_t keep);
  void LeaveSession(const Ask& ask, std::span<const TokenId> tokens);

  ScopeId ScopeOf(GhostEngine& engine, std::int32_t tenant);
  std::vector<TokenId> SystemPrompt();
  void Say(std::vector<TokenId>& log, std::int32_t num_tokens);
  SubmitSpec SomeSpec(ScopeId scope, const std::vector<TokenId>& prompt);
  std::int32_t room(std::size_t num_tokens) const;

  TrafficConfig config_;
  Dice dice_;
  TrafficCounts counts_;
  QueueFigures queue_;
  std::vector<std::vector<TokenId>> system_prompts_;  // by popularity
  std::vector<double> popularity_;                    // running sum of 1 / rank
  std::map<std::uint64_t, Session> sessions_;
  std::uint64_t next_session_ = 1;
  std::unordered_map<Handle, Ask> asks_;
  std::multimap<std::int64_t, Handle> aborts_;              // by time
  std::multimap<std::int64_t, Handle> holds_;               // likewise
  std::multimap<std::int64_t, Handle> releases_;            // likewise
  std::multimap<std::int64_t, Handle> sit_outs_;            // likewise
  std::multimap<std::int64_t, Handle> rejoins_;             // likewise
  std::vector<std::pair<Handle, std::int32_t>> to_finish_;  // and the outputs to keep
  std::int64_t next_arrival_us_ = 0;
  std::int32_t burst_left_ = 0;
  std::int64_t step_ = 0;
};

}  // namespace antiphon::soak
