#include "soak.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <string>
#include <utility>

namespace antiphon::soak {

namespace {

constexpr std::int64_t kStepUs = 1000;
constexpr std::int64_t kTokenUs = 10;
constexpr std::int64_t kStepsPerCheck = 2000;
constexpr std::int64_t kRequestsPerProgress = 10000;
constexpr double kWithheldShare = 0.05;  // of the rows that may be

// Steps a core through its traffic with a device that is late at random.
class Run {
 public:
  Run(const Variant& variant, const std::function<void(std::int64_t)>& progress)
      : variant_(variant),
        progress_(progress),
        dice_(variant.seed + 1),
        traffic_({.seed = variant.seed,
                  .num_requests = variant.num_requests,
                  .max_requests = variant.core.max_requests,
                  .max_context_tokens = variant.core.max_context_tokens,
                  .block_tokens = variant.core.block_tokens}),
        engine_(variant.core, {.seed = variant.seed + 2, .times_core = true}, &traffic_) {}

  Report Finish() {
    const auto begin = std::chrono::steady_clock::now();
    while (!traffic_.done() || engine_.num_live() > 0 || engine_.num_in_flight() > 0) {
      Advance();
    }
    traffic_.CloseSessions(engine_);
    Report report = {.num_variants = 1,
                     .work = engine_.work(),
                     .counts = traffic_.counts(),
                     .queue = traffic_.queue(),
                     .stats = engine_.core().stats()};
    engine_.CheckNothingLeft();
    const TrafficCounts& counts = report.counts;
    ghost::Expect(
        counts.num_submitted == counts.num_ended + counts.num_aborted + counts.num_finished,
        "a request did not end once");
    CheckFairness();
    const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - begin;
    report.wall_s = wall.count();
    return report;
  }

 private:
  void Advance() {
    traffic_.Act(engine_, now_us_);
    TellProgress();
    // Mostly as far ahead as may be; sometimes the host lags behind the device.
    if (engine_.can_plan() && (engine_.num_in_flight() == 0 || dice_.Chance(0.8)) && PlanStep()) {
      return;
    }
    if (engine_.can_execute() && (!engine_.can_commit() || dice_.Chance(0.5))) {
      engine_.Execute([this](std::int32_t /*row*/) { return dice_.Chance(kWithheldShare); });
      return;
    }
    if (engine_.can_commit()) {
      engine_.Commit();
      return;
    }
    Idle();
  }

  bool PlanStep() {
    if (!engine_.Plan(now_us_)) {
      return false;
    }
    num_idle_ = 0;
    traffic_.set_step(++num_steps_);
    now_us_ += kStepUs + kTokenUs * engine_.last_plan().header[kHeaderNumTokens];
    if (num_steps_ % kStepsPerCheck == 0) {
      engine_.core().CheckInvariants();
    }
    return true;
  }

  // Nothing ran and nothing is in flight.
  void Idle() {
    // For who sits out, others may have to wait.
    const bool none_may_run =
        engine_.num_live() == engine_.num_held() || engine_.num_sitting_out() > 0;
    ghost::Expect(none_may_run || ++num_idle_ < 3,
                  "I17: requests are there, nothing is in flight, and nothing runs");
    if (none_may_run && traffic_.next_us() != std::numeric_limits<std::int64_t>::max()) {
      now_us_ = std::max(now_us_, traffic_.next_us());
    }
  }

  // As many as may pass one that doesn't fit; and, of those admitted after him, as many as run
  // while his prefix is brought from the host, or while he waits for a block that another computes.
  void CheckFairness() const {
    const CoreConfig& core = variant_.core;
    const std::int32_t most = core.bypass_requests + core.max_rows;
    const std::int32_t found = traffic_.queue().max_bypass();
    if (found > most) {
      throw ghost::Contradiction("I18: a request was passed over by " + std::to_string(found) +
                                 " later ones; at most " + std::to_string(most) + " may");
    }
  }

  void TellProgress() {
    if (traffic_.counts().num_submitted >= next_progress_) {
      progress_(traffic_.counts().num_submitted);
      next_progress_ += kRequestsPerProgress;
    }
  }

  Variant variant_;
  const std::function<void(std::int64_t)>& progress_;
  ghost::Dice dice_;
  Traffic traffic_;
  GhostEngine engine_;
  std::int64_t now_us_ = 0;
  std::int64_t num_steps_ = 0;
  std::int64_t next_progress_ = kRequestsPerProgress;
  std::int32_t num_idle_ = 0;
};

}  // namespace

std::vector<Variant> VariantsOf(CapacityPolicy policy, std::int64_t num_requests,
                                std::uint64_t seed) {
  std::vector<Variant> variants;
  for (std::int32_t run_ahead = 0; run_ahead <= 2; ++run_ahead) {
    for (const bool has_host : {false, true}) {
      const auto number = static_cast<std::int32_t>(variants.size());
      CoreConfig core = {.num_blocks = 1 + std::array{80, 160, 400}[number % 3],
                         .block_tokens = 16,
                         .max_rows = 32,
                         .max_step_tokens = 256,
                         .max_context_tokens = 1024,
                         .max_requests = 384,
                         .chunk_tokens = number % 2 == 0 ? 0 : 128,
                         .num_buffer_sets = run_ahead + 1,
                         .run_ahead = run_ahead,
                         .capacity_policy = policy,
                         .chunk_policy = number % 3 == 1 ? ChunkPolicy::kEqualProgress
                                                         : ChunkPolicy::kFirstComeFirstServed,
                         .watermark_blocks = has_host ? -1 : 0,
                         .cooldown_steps = has_host ? 8 : 1,
                         .num_host_blocks = has_host ? 300 : 0,
                         .faults = {}};
      variants.push_back({.name = std::string(PolicyName(policy)) + ", run-ahead " +
                                  std::to_string(run_ahead) + (has_host ? ", host tier" : ""),
                          .core = core,
                          .num_requests = num_requests / 6 + (number < num_requests % 6 ? 1 : 0),
                          .seed = seed + static_cast<std::uint64_t>(number) * 1000003});
    }
  }
  return variants;
}

Report RunVariant(const Variant& variant, const std::function<void(std::int64_t)>& progress) {
  return Run(variant, progress).Finish();
}

}  // namespace antiphon::soak
