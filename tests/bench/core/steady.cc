#include "dice.h"
#include "measured_core.h"
#include "measurements.h"

namespace antiphon::bench {

namespace {

constexpr std::int32_t kWarmUpSteps = 4 * kBlockTokens;
constexpr std::int32_t kNumWindows = 40;
constexpr std::int32_t kNumSteps = kWarmUpSteps + kNumWindows * kBlockTokens;

std::vector<TokenId> RandomPrompt(ghost::Dice& dice, std::int32_t num_tokens) {
  std::vector<TokenId> prompt;
  prompt.reserve(static_cast<std::size_t>(num_tokens));
  for (std::int32_t i = 0; i < num_tokens; ++i) {
    prompt.push_back(dice.Below(1 << 17));
  }
  return prompt;
}

}  // namespace

double SteadyDecodeUs(std::int32_t num_rows, std::int32_t context_tokens,
                      std::int32_t num_waiting) {
  const std::int32_t max_output = kNumSteps + 4 * num_rows + 64;
  const std::int32_t blocks_each = BlocksFor(context_tokens + max_output, kBlockTokens);
  // Those who wait need more than what is left, beside free rows and tokens.
  const CoreConfig config = {.num_blocks = 1 + num_rows * blocks_each,
                             .block_tokens = kBlockTokens,
                             .max_rows = num_rows + 16,
                             .max_step_tokens = 8192,
                             .max_context_tokens = context_tokens + max_output + 1,
                             .max_requests = num_rows + num_waiting + 1,
                             .faults = {}};
  MeasuredCore core(config);
  ghost::Dice dice(1);
  for (std::int32_t i = 0; i < num_rows; ++i) {
    core.Submit(RandomPrompt(dice, context_tokens), max_output);
  }
  do {
    core.Step();
  } while (core.out().header[kHeaderNumDecodeRows] < num_rows);
  for (std::int32_t i = 0; i < num_waiting; ++i) {
    core.Submit(RandomPrompt(dice, 64), max_output);
  }
  for (std::int32_t i = 0; i < kWarmUpSteps; ++i) {
    core.Step();
  }
  std::vector<double> windows;
  for (std::int32_t window = 0; window < kNumWindows; ++window) {
    const double begin_s = CpuSeconds();
    for (std::int32_t i = 0; i < kBlockTokens; ++i) {
      core.Step();
    }
    windows.push_back((CpuSeconds() - begin_s) * 1e6 / kBlockTokens);
    Check(core.out().header[kHeaderNumDecodeRows] == num_rows, "the decode is not steady");
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
