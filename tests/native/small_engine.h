// A core with its arrays and an executor that samples whatever it is told.
#pragma once

#include <deque>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "antiphon/engine_core.h"
#include "step_arrays.h"

namespace antiphon {

inline constexpr CoreConfig kSmall = {.num_blocks = 9,
                                      .block_tokens = 2,
                                      .max_rows = 3,
                                      .max_step_tokens = 8,
                                      .max_context_tokens = 16,
                                      .max_requests = 6};

// `kSmall` with a change.
template <typename Change>
CoreConfig SmallWith(Change change) {
  CoreConfig config = kSmall;
  change(config);
  return config;
}

class Engine {
 public:
  explicit Engine(const CoreConfig& config = kSmall) : core_(config) {
    for (std::int32_t set = 0; set < config.num_buffer_sets; ++set) {
      arrays_.push_back(std::make_unique<StepArrays>(config.max_rows, config.max_step_tokens,
                                                     core_.min_table_deltas(),
                                                     core_.config().max_step_copies));
      core_.RegisterBuffers(set, arrays_.back()->buffers());
    }
    scope_ = core_.InternScope({.tenant = "", .cache_scope = "", .adapter = "", .weights = ""});
  }

  Handle Submit(std::int32_t num_prompt, std::int32_t max_output = 4, Handle leader = 0) {
    return SubmitFrom(1, num_prompt, max_output, {.priority = 50, .leader = leader});
  }

  // A prompt of the tokens `first`, `first` + 1 and so on, with what else `spec` says.
  Handle SubmitFrom(TokenId first, std::int32_t num_prompt, std::int32_t max_output,
                    SubmitSpec spec = {.priority = 50}) {
    std::vector<TokenId> prompt(static_cast<std::size_t>(num_prompt));
    std::iota(prompt.begin(), prompt.end(), first);
    spec.prompt = prompt;
    spec.scope = scope_;
    spec.max_output_tokens = max_output;
    spec.end_ids = kEndIds;
    spec.stop_ids = kStopIds;
    return core_.Submit(spec);
  }

  // Plans into the set that was used longest ago; 0: nothing can run.
  StepId Plan() {
    const StepId step = core_.Plan(next_set_);
    core_.CheckInvariants();
    if (step != 0) {
      last_set_ = next_set_;
      in_flight_.emplace_back(step, next_set_);
      next_set_ = (next_set_ + 1) % static_cast<std::int32_t>(arrays_.size());
    }
    return step;
  }

  // Commits the oldest step in flight, in which every row sampled `token`.
  void Commit(TokenId token = 1) {
    SampleNext(token);
    CommitNext();
  }

  // Likewise, but one row brings no token.
  void CommitWithout(std::size_t row, TokenId token = 1) {
    SampleNext(token).num_tokens[row] = 0;
    CommitNext();
  }

  bool Step(TokenId token = 1) {
    if (Plan() == 0) {
      return false;
    }
    Commit(token);
    return true;
  }

  void Run() {
    for (;;) {
      const bool may_plan = in_flight_.size() <= static_cast<std::size_t>(core_.config().run_ahead);
      if (may_plan && Plan() != 0) {
        continue;
      }
      if (in_flight_.empty()) {
        return;
      }
      Commit();
    }
  }

  EngineCore& core() { return core_; }
  CoreStats stats() const { return core_.stats(); }

  // Of the step planned last.
  std::int32_t header(HeaderField field) const { return arrays(last_set_).header(field); }
  const StepBuffers& out() const { return arrays(last_set_).buffers(); }
  std::vector<Handle> rows() const { return {out().handle, out().handle + header(kHeaderNumRows)}; }
  // Of the step committed last.
  std::vector<std::int32_t> result(std::size_t row) const {
    return arrays(committed_set_).result(row);
  }

 private:
  static constexpr TokenId kEndIds[] = {100, 99};
  static constexpr TokenId kStopIds[] = {100, 98};

  const StepBuffers& SampleNext(TokenId token) {
    StepArrays& arrays = *arrays_[static_cast<std::size_t>(in_flight_.front().second)];
    arrays.Sample(token);
    return arrays.buffers();
  }

  void CommitNext() {
    const auto [step, set] = in_flight_.front();
    in_flight_.pop_front();
    core_.Commit(step);
    core_.CheckInvariants();
    committed_set_ = set;
  }

  const StepArrays& arrays(std::int32_t set) const {
    return *arrays_[static_cast<std::size_t>(set)];
  }

  EngineCore core_;
  std::vector<std::unique_ptr<StepArrays>> arrays_;
  std::deque<std::pair<StepId, std::int32_t>> in_flight_;
  std::int32_t next_set_ = 0;
  std::int32_t last_set_ = 0;
  std::int32_t committed_set_ = 0;
  ScopeId scope_ = 0;
};

}  // namespace antiphon
