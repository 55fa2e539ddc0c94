// Measures the core alone and prints one JSON object. `pressure` as an argument prints instead, for
// a grid of settings, what MAX_UTILIZATION gives under pressure: for choosing its defaults. `steady
// ROWS WINDOWS` runs nothing but steady decode: for profilers.
#include <charconv>
#include <cstdio>
#include <initializer_list>
#include <string_view>
#include <vector>

#include "measurements.h"

namespace {

using antiphon::CapacityPolicy;
using antiphon::bench::Pressure;
using antiphon::bench::PressureFigures;
using antiphon::bench::SteadyFigures;

void PrintPressure(const char* policy, const char* suffix, const PressureFigures& figures) {
  std::printf(
      ", \"%s%s\": {\"output_tokens_per_s\": %.0f, \"first_token_p50_s\": %.3f, "
      "\"first_token_p99_s\": %.3f, \"token_gap_p50_ms\": %.1f, \"token_gap_p99_ms\": %.1f, "
      "\"request_p50_s\": %.2f, \"request_p99_s\": %.2f, \"recomputed_share\": %.4f, "
      "\"rows_per_step\": %.1f, \"num_pauses\": %lld}",
      policy, suffix, figures.output_tokens_per_s, figures.first_token_p50_s,
      figures.first_token_p99_s, figures.token_gap_p50_ms, figures.token_gap_p99_ms,
      figures.request_p50_s, figures.request_p99_s, figures.recomputed_share, figures.rows_per_step,
      static_cast<long long>(figures.num_pauses));
}

// What MAX_UTILIZATION gives under a load, for a grid of settings.
void PrintGrid(const char* name, const Pressure& load) {
  const double no_evict = RunUnderPressure(load).output_tokens_per_s;
  std::printf("%s: guaranteed_no_evict %.0f tokens/s\n", name, no_evict);
  for (const std::int32_t watermark : {-1, 0, 64, 128, 256, 512}) {
    for (const std::int32_t cooldown : {0, 2, 8, 32, 128}) {
      Pressure pressure = load;
      pressure.policy = CapacityPolicy::kMaxUtilization;
      pressure.watermark_blocks = watermark;
      pressure.cooldown_steps = cooldown;
      const PressureFigures figures = RunUnderPressure(pressure);
      std::printf(
          "  watermark %4d, cooldown %3d: %.3f, recomputed %.3f, pauses %lld, gap p99 %.0f ms, "
          "first token p99 %.1f s, request p99 %.1f s\n",
          watermark, cooldown, figures.output_tokens_per_s / no_evict, figures.recomputed_share,
          static_cast<long long>(figures.num_pauses), figures.token_gap_p99_ms,
          figures.first_token_p99_s, figures.request_p99_s);
    }
  }
}

void PrintGrids() {
  for (const std::int32_t run_ahead : {0, 1}) {
    PrintGrid(run_ahead == 0 ? "lengths unknown" : "lengths unknown, run-ahead 1",
              {.run_ahead = run_ahead, .cost = {}});
    PrintGrid(run_ahead == 0 ? "lockstep, lengths known" : "lockstep, lengths known, run-ahead 1",
              {.lengths_are_known = true, .in_lockstep = true, .run_ahead = run_ahead, .cost = {}});
  }
}

// Both policies under one load: the ratio of their throughputs, then the figures of each.
void PrintPair(const char* suffix, const Pressure& load) {
  Pressure bold = load;
  bold.policy = CapacityPolicy::kMaxUtilization;
  const PressureFigures no_evict = RunUnderPressure(load);
  const PressureFigures max_util = RunUnderPressure(bold);
  std::printf(", \"maxutil_vs_noevict%s\": %.3f", suffix,
              max_util.output_tokens_per_s / no_evict.output_tokens_per_s);
  PrintPressure("noevict", suffix, no_evict);
  PrintPressure("maxutil", suffix, max_util);
}

void PrintPressures() {
  PrintPair("", {.cost = {}});
  PrintPair("_known_lengths", {.lengths_are_known = true, .cost = {}});
  PrintPair("_lockstep", {.in_lockstep = true, .cost = {}});
  PrintPair("_lockstep_known_lengths",
            {.lengths_are_known = true, .in_lockstep = true, .cost = {}});
}

void PrintSteadyDecode() {
  const std::vector<SteadyFigures> figures =
      antiphon::bench::MeasureSteadyDecode({{.num_rows = 256},
                                            {.num_rows = 1024},
                                            {.num_rows = 256, .context_tokens = 32768},
                                            {.num_rows = 256, .num_waiting = 10000}});
  const auto print = [](const char* name, const SteadyFigures& figure) {
    std::printf("\"%s\": %.2f, \"%s_rounds\": [%.2f, %.2f], ", name, figure.us, name,
                figure.least_round_us, figure.most_round_us);
  };
  print("plan_commit_us_256", figures[0]);
  print("plan_commit_us_1024", figures[1]);
  print("plan_commit_us_256_context_32k", figures[2]);
  print("plan_commit_us_256_waiting_10k", figures[3]);
  std::printf("\"waiting_10k_ratio\": %.2f, ", figures[3].us / figures[0].us);
}

std::int32_t NumberFrom(std::string_view text) {
  std::int32_t number = 0;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

}  // namespace

int main(int num_arguments, char** arguments) {
  using namespace antiphon::bench;
  const std::vector<std::string_view> words(arguments + 1, arguments + num_arguments);
  if (words.size() == 1 && words[0] == "pressure") {
    PrintGrids();
    return 0;
  }
  if (words.size() == 3 && words[0] == "steady") {
    std::printf("%.2f us\n",
                ProfileSteadyDecode({.num_rows = NumberFrom(words[1])}, NumberFrom(words[2])));
    return 0;
  }
  std::printf("{");
  PrintSteadyDecode();
  const MatchTimes match = MeasureMatch(100000);
  std::printf(
      "\"cold_100k_match_ms\": %.3f, \"warm_100k_match_ms\": %.3f, "
      "\"warm_100k_lookup_ms\": %.3f",
      match.cold_ms, match.warm_ms, match.warm_match_ms);
  PrintPressures();
  std::printf("}\n");
  return 0;
}
