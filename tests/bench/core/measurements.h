#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "antiphon/capacity.h"

namespace antiphon::bench {

inline constexpr std::int32_t kBlockTokens = 32;

// Requests that decode, one token each a step, beside others that memory keeps out.
struct SteadyLoad {
  std::int32_t num_rows = 0;
  std::int32_t context_tokens = 1024;
  std::int32_t num_waiting = 0;
};

// Microseconds of Plan and Commit together in steady decode: the median over windows of as many
// steps as a block has tokens, so that each holds the same share of new blocks; and the least and
// the most that any round's windows gave.
struct SteadyFigures {
  double us = 0;
  double least_round_us = 0;
  double most_round_us = 0;
};

// Measures loads in rounds, each load in turn, so that what else the machine does is spread over
// all of them.
std::vector<SteadyFigures> MeasureSteadyDecode(const std::vector<SteadyLoad>& loads);

// Lets one load decode for so many windows; for profilers, to which SteadyDecode::WindowUs is the
// steady part. Returns the median of the windows.
double ProfileSteadyDecode(const SteadyLoad& load, std::int32_t num_windows);

// Milliseconds of Submit and the first Plan of a prompt, median.
struct MatchTimes {
  double cold_ms = 0;        // nothing of it is cached
  double warm_ms = 0;        // all of it is
  double warm_match_ms = 0;  // MatchPrefix alone, hashes included
};
MatchTimes MeasureMatch(std::int32_t num_tokens);

// What a step costs, as on one accelerator.
struct CostModel {
  double step_us = 4800;
  double token_us = 22;
  double context_token_us = 0.03;
};

// Clients who always have one request each, with a working set of twice the pool.
struct Pressure {
  CapacityPolicy policy = CapacityPolicy::kGuaranteedNoEvict;
  bool lengths_are_known = false;  // max_output_tokens is what comes; else it is generous
  // All prompts and all outputs are of one length, and all clients start at once, so that memory
  // is full when nobody is near his end. Else short prompts get outputs of very different lengths.
  bool in_lockstep = false;
  std::int32_t watermark_blocks = -1;
  std::int32_t cooldown_steps = 8;
  std::int32_t run_ahead = 0;
  std::int32_t num_requests = 2000;
  CostModel cost;
};

struct PressureFigures {
  double output_tokens_per_s = 0;
  double first_token_p50_s = 0;
  double first_token_p99_s = 0;
  double token_gap_p50_ms = 0;
  double token_gap_p99_ms = 0;
  double request_p50_s = 0;
  double request_p99_s = 0;
  double recomputed_share = 0;
  double rows_per_step = 0;
  std::int64_t num_pauses = 0;
};
PressureFigures RunUnderPressure(const Pressure& pressure);

}  // namespace antiphon::bench
