#include "ghost_engine.h"

#include <time.h>

#include <algorithm>

namespace antiphon::ghost {

// Adds the thread's CPU time from its construction to its end to a total.
class GhostEngine::Stopwatch {
 public:
  explicit Stopwatch(GhostEngine& engine)
      : total_s_(engine.options_.times_core ? &engine.work_.core_cpu_s : nullptr),
        begin_s_(total_s_ == nullptr ? 0 : Now()) {}
  ~Stopwatch() {
    if (total_s_ != nullptr) {
      *total_s_ += Now() - begin_s_;
    }
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  static double Now() {
    timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
  }

  double* total_s_;
  double begin_s_;
};

GhostEngine::GhostEngine(const CoreConfig& config, const Options& options, Listener* listener)
    : config_(config),
      options_(options),
      listener_(listener),
      core_(config),
      device_(config, options.vocabulary, options.seed),
      dice_(options.seed + 1) {
  for (std::int32_t set = 0; set < config.num_buffer_sets; ++set) {
    sets_.push_back(std::make_unique<StepArrays>(config.max_rows, config.max_step_tokens,
                                                 core_.min_table_deltas(),
                                                 core_.config().max_step_copies));
    core_.RegisterBuffers(set, sets_.back()->buffers());
  }
}

Handle GhostEngine::Submit(const SubmitSpec& spec) {
  const Handle handle = core_.Submit(spec);
  Expect(handle != 0, "a handle of 0");
  const Draws draws = {.seed = spec.seed, .output_index = spec.output_index};
  const auto [place, is_new] = records_.emplace(
      handle, Record{.stream = Stream(spec.scope, spec.prompt, draws, options_.vocabulary),
                     .max_output = spec.max_output_tokens,
                     .end_ids = {spec.end_ids.begin(), spec.end_ids.end()},
                     .stop_ids = {spec.stop_ids.begin(), spec.stop_ids.end()},
                     .num_reusable = spec.num_reusable});
  Expect(is_new, "a handle was given twice");
  ++num_live_;
  return handle;
}

bool GhostEngine::Abort(Handle handle) {
  const bool was_live = IsLive(handle);
  Expect(core_.Abort(handle) == was_live, "Abort is wrong about whether the request had ended");
  if (was_live) {
    End(handle, RecordOf(handle));
    Forget(handle);
  }
  return was_live;
}

bool GhostEngine::Finish(Handle handle, std::int32_t keep_output_tokens) {
  const bool was_live = IsLive(handle);
  Expect(core_.Finish(handle, keep_output_tokens) == was_live,
         "Finish is wrong about whether the request had ended");
  if (was_live) {
    End(handle, RecordOf(handle));
    Forget(handle);
  }
  return was_live;
}

bool GhostEngine::Hold(Handle handle) {
  const bool was_live = IsLive(handle);
  Expect(core_.Hold(handle) == was_live, "Hold is wrong about whether the request had ended");
  if (was_live) {
    Record& record = RecordOf(handle);
    num_held_ += record.held ? 0 : 1;
    record.held = true;
    record.was_held = true;
  }
  return was_live;
}

bool GhostEngine::Release(Handle handle) {
  const bool was_live = IsLive(handle);
  Expect(core_.Release(handle) == was_live, "Release is wrong about whether the request had ended");
  if (was_live) {
    Record& record = RecordOf(handle);
    num_held_ -= record.held ? 1 : 0;
    record.held = false;
  }
  return was_live;
}

bool GhostEngine::SitOut(Handle handle) {
  const bool was_live = IsLive(handle);
  Expect(core_.SitOut(handle) == was_live, "SitOut is wrong about whether the request had ended");
  if (was_live) {
    Record& record = RecordOf(handle);
    num_sitting_out_ += record.sits_out ? 0 : 1;
    record.sits_out = true;
  }
  return was_live;
}

bool GhostEngine::Rejoin(Handle handle) {
  const bool was_live = IsLive(handle);
  // Whose token is withheld does when that row is committed.
  Expect((was_live && RecordOf(handle).withheld) || core_.Rejoin(handle) == was_live,
         "Rejoin is wrong about whether the request had ended");
  if (was_live) {
    Record& record = RecordOf(handle);
    num_sitting_out_ -= record.sits_out ? 1 : 0;
    record.sits_out = false;
  }
  return was_live;
}

bool GhostEngine::Rests(Handle handle) const {
  const auto found = records_.find(handle);
  return found != records_.end() && found->second.live &&
         (found->second.held || found->second.sits_out);
}

bool GhostEngine::can_plan() const {
  return static_cast<std::int32_t>(in_flight_.size()) <= config_.run_ahead;
}

bool GhostEngine::Plan(std::int64_t now_us) {
  const std::size_t set = (last_set_ + 1) % sets_.size();
  StepId step = 0;
  {
    const Stopwatch stopwatch(*this);
    step = core_.Plan(static_cast<std::int32_t>(set), now_us * 1000);
  }
  if (step == 0) {
    return false;
  }
  last_set_ = set;
  in_flight_.push_back({.step = step, .set = set});
  const StepBuffers& out = sets_[set]->buffers();
  ++work_.num_steps;
  work_.num_rows += out.header[kHeaderNumRows];
  for (std::int32_t row = 0; row < out.header[kHeaderNumRows]; ++row) {
    NotePlannedRow(out, row);
  }
  // A block that is free is used by no step in flight, so that copies may run ahead of those.
  while (num_copied_ < in_flight_.size() && dice_.Chance(0.5)) {
    CopyNext();
  }
  return true;
}

void GhostEngine::CopyNext() {
  device_.Copy(sets_[in_flight_[num_copied_].set]->buffers());
  ++num_copied_;
}

void GhostEngine::Execute(const WantsNone& wants_none) {
  if (num_copied_ == num_executed_) {
    CopyNext();
  }
  const InFlight& oldest = in_flight_[num_executed_];
  device_.Execute(
      sets_[oldest.set]->buffers(),
      [this](Handle handle) -> Stream& { return RecordOf(handle).stream; },
      Withhold(oldest, wants_none));
  ++num_executed_;
}

// Only a request's last row in flight may bring no token, and none may come behind it.
std::vector<bool> GhostEngine::Withhold(const InFlight& in_flight, const WantsNone& wants_none) {
  const StepBuffers& step = sets_[in_flight.set]->buffers();
  std::vector<bool> withheld(static_cast<std::size_t>(step.header[kHeaderNumRows]), false);
  for (std::int32_t row = 0; wants_none && row < step.header[kHeaderNumRows]; ++row) {
    Record& record = RecordOf(step.handle[row]);
    if ((step.flags[row] & kFlagSample) == 0 || record.last_step != in_flight.step ||
        !wants_none(row)) {
      continue;
    }
    withheld[static_cast<std::size_t>(row)] = true;
    record.withheld = true;
    Expect(core_.SitOut(step.handle[row]) == record.live,
           "SitOut is wrong about whether the request had ended");
  }
  return withheld;
}

void GhostEngine::Commit() {
  const InFlight oldest = in_flight_.front();
  in_flight_.pop_front();
  --num_copied_;
  --num_executed_;
  {
    const Stopwatch stopwatch(*this);
    core_.Commit(oldest.step);
  }
  const StepBuffers& out = sets_[oldest.set]->buffers();
  for (std::int32_t row = 0; row < out.header[kHeaderNumRows]; ++row) {
    TakeResult(out, row);
  }
}

void GhostEngine::CheckNothingLeft() {
  Expect(num_live_ == 0 && in_flight_.empty(), "requests or steps are left");
  Expect(records_.empty(), "I24: rows of ended requests are still in flight");
  core_.CheckInvariants();
  CoreStats stats = core_.stats();
  Expect(stats.num_running == 0 && stats.num_waiting == 0 && stats.num_paused == 0 &&
             stats.num_held == 0,
         "the core counts requests that have ended");
  Expect(stats.num_blocks_used == 0, "I25: blocks are used by nobody");
  core_.FlushPrefixCache();
  core_.CheckInvariants();
  stats = core_.stats();
  Expect(stats.num_blocks_free == stats.num_blocks, "I25: a flush leaves blocks");
  Expect(stats.num_host_blocks_used == 0, "I25: a flush leaves host blocks");
}

void GhostEngine::CheckSittersHinderNobody() const {
  for (const auto& [handle, record] : records_) {
    Expect(may_pause() || !record.live || !record.started || record.was_held || record.sits_out,
           "I17: a request that has all its memory does not go on while others sit out");
  }
}

bool GhostEngine::IsLive(Handle handle) const {
  const auto found = records_.find(handle);
  return found != records_.end() && found->second.live;
}

GhostEngine::Record& GhostEngine::RecordOf(Handle handle) {
  const auto found = records_.find(handle);
  Expect(found != records_.end(), "a row of a request that is gone");
  return found->second;
}

}  // namespace antiphon::ghost
