#include "dice.h"
#include "measured_core.h"
#include "measurements.h"

namespace antiphon::bench {

namespace {

constexpr std::int32_t kNumWarmUpWindows = 4;
constexpr std::int32_t kNumRounds = 7;
constexpr std::int32_t kWindowsPerRound = 16;

std::vector<TokenId> RandomPrompt(ghost::Dice& dice, std::int32_t num_tokens) {
  std::vector<TokenId> prompt;
  prompt.reserve(static_cast<std::size_t>(num_tokens));
  for (std::int32_t i = 0; i < num_tokens; ++i) {
    prompt.push_back(dice.Below(1 << 17));
  }
  return prompt;
}

// A core that has brought a load to where all of it decodes, and stays there for some windows.
class SteadyDecode {
 public:
  SteadyDecode(const SteadyLoad& load, std::int32_t num_windows)
      : load_(load),
        max_output_((kNumWarmUpWindows + num_windows) * kBlockTokens + 4 * load.num_rows + 64),
        core_(Config()) {
    ghost::Dice dice(1);
    for (std::int32_t i = 0; i < load_.num_rows; ++i) {
      core_.Submit(RandomPrompt(dice, load_.context_tokens), max_output_);
    }
    do {
      core_.Step();
    } while (core_.out().header[kHeaderNumDecodeRows] < load_.num_rows);
    for (std::int32_t i = 0; i < load_.num_waiting; ++i) {
      core_.Submit(RandomPrompt(dice, 64), max_output_);
    }
    for (std::int32_t i = 0; i < kNumWarmUpWindows; ++i) {
      WindowUs();
    }
  }

  // Runs one window and returns what a step of it took. Not inlined, so that profilers find it.
  [[gnu::noinline]] double WindowUs() {
    const double begin_s = CpuSeconds();
    for (std::int32_t i = 0; i < kBlockTokens; ++i) {
      core_.Step();
    }
    const double us = (CpuSeconds() - begin_s) * 1e6 / kBlockTokens;
    Check(core_.out().header[kHeaderNumDecodeRows] == load_.num_rows, "the decode is not steady");
    return us;
  }

 private:
  // Those who wait need more than what is left, beside free rows and tokens.
  CoreConfig Config() const {
    const std::int32_t max_tokens = load_.context_tokens + max_output_;
    return {.num_blocks = 1 + load_.num_rows * BlocksFor(max_tokens, kBlockTokens),
            .block_tokens = kBlockTokens,
            .max_rows = load_.num_rows + 16,
            .max_step_tokens = 8192,
            .max_context_tokens = max_tokens + 1,
            .max_requests = load_.num_rows + load_.num_waiting + 1,
            .faults = {}};
  }

  SteadyLoad load_;
  std::int32_t max_output_;
  MeasuredCore core_;
};

}  // namespace

std::vector<SteadyFigures> MeasureSteadyDecode(const std::vector<SteadyLoad>& loads) {
  std::vector<std::unique_ptr<SteadyDecode>> decodes;
  for (const SteadyLoad& load : loads) {
    decodes.push_back(std::make_unique<SteadyDecode>(load, kNumRounds * kWindowsPerRound));
  }
  std::vector<std::vector<double>> windows(loads.size());
  std::vector<std::vector<double>> rounds(loads.size());
  for (std::int32_t round = 0; round < kNumRounds; ++round) {
    for (std::size_t load = 0; load < loads.size(); ++load) {
      std::vector<double> latest;
      for (std::int32_t window = 0; window < kWindowsPerRound; ++window) {
        latest.push_back(decodes[load]->WindowUs());
      }
      windows[load].insert(windows[load].end(), latest.begin(), latest.end());
      rounds[load].push_back(Percentile(latest, 0.5));
    }
  }
  std::vector<SteadyFigures> figures;
  for (std::size_t load = 0; load < loads.size(); ++load) {
    figures.push_back({.us = Percentile(windows[load], 0.5),
                       .least_round_us = Percentile(rounds[load], 0),
                       .most_round_us = Percentile(rounds[load], 1)});
  }
  return figures;
}

double ProfileSteadyDecode(const SteadyLoad& load, std::int32_t num_windows) {
  SteadyDecode decode(load, num_windows);
  std::vector<double> windows;
  for (std::int32_t window = 0; window < num_windows; ++window) {
    windows.push_back(decode.WindowUs());
  }
  return Percentile(windows, 0.5);
}

MatchTimes MeasureMatch(std::int32_t num_tokens) {
  constexpr std::int32_t kRepeats = 15;
  // Room for one prompt beside what the last one left.
  const CoreConfig config = {.num_blocks = 1 + 2 * BlocksFor(num_tokens + 64, kBlockTokens),
                             .block_tokens = kBlockTokens,
                             .max_rows = 16,
                             .max_step_tokens = 8192,
                             .max_context_tokens = num_tokens + 64,
                             .max_requests = 16,
                             .faults = {}};
  MeasuredCore core(config);
  ghost::Dice dice(2);
  std::vector<double> cold;
  std::vector<double> warm;
  std::vector<double> match;
  const ScopeId scope =
      core.core().InternScope({.tenant = "", .cache_scope = "", .adapter = "", .weights = ""});
  const auto time_start = [&core](const std::vector<TokenId>& prompt) {
    const double begin_s = CpuSeconds();
    core.Submit(prompt, 1);
    const StepId step = core.core().Plan(0);
    const double ms = (CpuSeconds() - begin_s) * 1e3;
    core.core().Commit(step);
    while (core.Step()) {
    }
    return ms;
  };
  for (std::int32_t i = 0; i < kRepeats; ++i) {
    const std::vector<TokenId> prompt = RandomPrompt(dice, num_tokens);
    cold.push_back(time_start(prompt));
    warm.push_back(time_start(prompt));
    const double begin_s = CpuSeconds();
    const std::int32_t num_matched = core.core().MatchPrefix(scope, prompt);
    match.push_back((CpuSeconds() - begin_s) * 1e3);
    Check(num_matched >= num_tokens - kBlockTokens, "a warm prompt is not cached");
  }
  return {.cold_ms = Percentile(cold, 0.5),
          .warm_ms = Percentile(warm, 0.5),
          .warm_match_ms = Percentile(match, 0.5)};
}

}  // namespace antiphon::bench
