#pragma once

#include <time.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "antiphon/engine_core.h"
#include "step_arrays.h"

namespace antiphon::bench {

// CPU time of this thread.
inline double CpuSeconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

// REQUIRES: values is not empty
inline double Percentile(std::vector<double> values, double share) {
  const auto place = static_cast<std::ptrdiff_t>(share * static_cast<double>(values.size() - 1));
  std::nth_element(values.begin(), values.begin() + place, values.end());
  return values[static_cast<std::size_t>(place)];
}

// A core whose executor costs nothing: every row samples one token that ends nothing.
class MeasuredCore {
 public:
  static constexpr TokenId kToken = 7;
  static constexpr TokenId kEndId = 2;

  explicit MeasuredCore(const CoreConfig& config) : core_(config) {
    for (std::int32_t set = 0; set < config.num_buffer_sets; ++set) {
      sets_.push_back(std::make_unique<StepArrays>(config.max_rows, config.max_step_tokens,
                                                   core_.min_table_deltas(),
                                                   core_.config().max_step_copies));
      sets_.back()->Sample(kToken);
      core_.RegisterBuffers(set, sets_.back()->buffers());
    }
    scope_ = core_.InternScope({.tenant = "", .cache_scope = "", .adapter = "", .weights = ""});
  }

  Handle Submit(const std::vector<TokenId>& prompt, std::int32_t max_output) {
    return core_.Submit({.prompt = prompt,
                         .scope = scope_,
                         .max_output_tokens = max_output,
                         .end_ids = {&kEndId, 1},
                         .priority = 50,
                         .retention = {}});
  }

  // Returns false if nothing can run.
  bool Step() {
    const StepId step = core_.Plan(0, now_ns_ += 1000);
    if (step != 0) {
      core_.Commit(step);
    }
    return step != 0;
  }

  EngineCore& core() { return core_; }
  const StepBuffers& out() const { return sets_[0]->buffers(); }

 private:
  EngineCore core_;
  std::vector<std::unique_ptr<StepArrays>> sets_;
  ScopeId scope_ = 0;
  std::int64_t now_ns_ = 0;
};

}  // namespace antiphon::bench
