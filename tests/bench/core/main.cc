// Measures the core alone and prints one JSON object. `pressure` as an argument prints instead, for
// a grid of settings, what MAX_UTILIZATION gives under pressure: for choosing its defaults.
#include <cstdio>
#include <initializer_list>
#include <string_view>

#include "measurements.h"

namespace {

using antiphon::CapacityPolicy;
using antiphon::bench::Pressure;
using antiphon::bench::PressureFigures;

void PrintPressure(const char* name, const PressureFigures& figures) {
  std::printf(
      "\"%s\": {\"output_tokens_per_s\": %.0f, \"first_token_p50_s\": %.3f, "
      "\"first_token_p99_s\": %.3f, \"token_gap_p50_ms\": %.1f, \"token_gap_p99_ms\": %.1f, "
      "\"request_p50_s\": %.2f, \"request_p99_s\": %.2f, \"recomputed_share\": %.4f, "
      "\"rows_per_step\": %.1f, \"num_pauses\": %lld}",
      name, figures.output_tokens_per_s, figures.first_token_p50_s, figures.first_token_p99_s,
      figures.token_gap_p50_ms, figures.token_gap_p99_ms, figures.request_p50_s,
      figures.request_p99_s, figures.recomputed_share, figures.rows_per_step,
      static_cast<long long>(figures.num_pauses));
}

void PrintGrid() {
  for (const std::int32_t run_ahead : {0, 1}) {
    for (const bool known : {false, true}) {
      const Pressure base = {.lengths_are_known = known, .run_ahead = run_ahead, .cost = {}};
      const double no_evict = RunUnderPressure(base).output_tokens_per_s;
      std::printf("run-ahead %d, lengths %s: guaranteed_no_evict %.0f tokens/s\n", run_ahead,
                  known ? "known" : "unknown", no_evict);
      for (const std::int32_t watermark : {-1, 0, 64, 128, 256, 512}) {
        for (const std::int32_t cooldown : {0, 2, 8, 32, 128}) {
          Pressure pressure = base;
          pressure.policy = CapacityPolicy::kMaxUtilization;
          pressure.watermark_blocks = watermark;
          pressure.cooldown_steps = cooldown;
          const PressureFigures figures = RunUnderPressure(pressure);
          std::printf("  watermark %4d, cooldown %3d: %.3f, recomputed %.3f, pauses %lld, gap p99 "
                      "%.0f ms, first token p99 %.1f s, request p99 %.1f s\n",
                      watermark, cooldown, figures.output_tokens_per_s / no_evict,
                      figures.recomputed_share, static_cast<long long>(figures.num_pauses),
                      figures.token_gap_p99_ms, figures.first_token_p99_s, figures.request_p99_s);
        }
      }
    }
  }
}

void PrintPressures() {
  const Pressure no_evict = {.cost = {}};
  Pressure max_util = no_evict;
  max_util.policy = CapacityPolicy::kMaxUtilization;
  const PressureFigures base = RunUnderPressure(no_evict);
  const PressureFigures bold = RunUnderPressure(max_util);
  Pressure no_evict_known = no_evict;
  no_evict_known.lengths_are_known = true;
  Pressure max_util_known = max_util;
  max_util_known.lengths_are_known = true;
  const PressureFigures base_known = RunUnderPressure(no_evict_known);
  const PressureFigures bold_known = RunUnderPressure(max_util_known);
  std::printf("\"maxutil_vs_noevict\": %.3f, \"maxutil_vs_noevict_known_lengths\": %.3f, ",
              bold.output_tokens_per_s / base.output_tokens_per_s,
              bold_known.output_tokens_per_s / base_known.output_tokens_per_s);
  PrintPressure("noevict", base);
  std::printf(", ");
  PrintPressure("maxutil", bold);
  std::printf(", ");
  PrintPressure("noevict_known_lengths", base_known);
  std::printf(", ");
  PrintPressure("maxutil_known_lengths", bold_known);
}

}  // namespace

int main(int num_arguments, char** arguments) {
  using namespace antiphon::bench;
  if (num_arguments > 1 && std::string_view(arguments[1]) == "pressure") {
    PrintGrid();
    return 0;
  }
  const double us_256 = SteadyDecodeUs(256, 1024, 0);
  std::printf("{\"plan_commit_us_256\": %.2f, ", us_256);
  std::printf("\"plan_commit_us_1024\": %.2f, ", SteadyDecodeUs(1024, 1024, 0));
  std::printf("\"plan_commit_us_256_context_32k\": %.2f, ", SteadyDecodeUs(256, 32768, 0));
  std::printf("\"waiting_10k_ratio\": %.2f, ", SteadyDecodeUs(256, 1024, 10000) / us_256);
  const MatchTimes match = MeasureMatch(100000);
  std::printf("\"cold_100k_match_ms\": %.3f, \"warm_100k_match_ms\": %.3f, "
              "\"warm_100k_lookup_ms\": %.3f, ",
              match.cold_ms, match.warm_ms, match.warm_match_ms);
  PrintPressures();
  std::printf("}\n");
  return 0;
}
