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
                     .stop_ids = {spec.stop_ids.begin(), spec.stop_ids.end()}});
  Expect(is_new, "a handle was given twice");
  ++num_live_;
  return handle;
}

bool GhostEngine::Abort(Handle handle) {
  const bool was_live = IsLive(handle);
  Expect(core_.Abort(handle) == was_live, "Abort is wrong about whether the request had ended");
  if (was_live) {
    End(RecordOf(handle));
    Forget(handle);
  }
  return was_live;
}

bool GhostEngine::Finish(Handle handle, std::int32_t keep_output_tokens) {
  const bool was_live = IsLive(handle);
  Expect(core_.Finish(handle, keep_output_tokens) == was_live,
         "Finish is wrong about whether the request had ended");
  if (was_live) {
    End(RecordOf(handle));
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

void GhostEngine::Execute() {
  if (num_copied_ == num_executed_) {
    CopyNext();
  }
  const StepBuffers& step = sets_[in_flight_[num_executed_].set]->buffers();
  device_.Execute(step, [this](Handle handle) -> Stream& { return RecordOf(handle).stream; });
  ++num_executed_;
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

bool GhostEngine::IsLive(Handle handle) const {
  const auto found = records_.find(handle);
  return found != records_.end() && found->second.live;
}

GhostEngine::Record& GhostEngine::RecordOf(Handle handle) {
  const auto found = records_.find(handle);
  Expect(found != records_.end(), "a row of a request that is gone");
  return found->second;
}

void GhostEngine::NotePlannedRow(const StepBuffers& step, std::int32_t row) {
  const Handle handle = step.handle[row];
  Record& record = RecordOf(handle);
  Expect(record.live, "a row is planned for a request that has ended");
  Expect(!record.held, "a row is planned for a request that is held");
  ++record.num_rows_in_flight;
  const bool is_first = (step.flags[row] & kFlagFirst) != 0;
  const bool is_resumed = (step.flags[row] & kFlagResumed) != 0;
  Expect(is_first == !record.started, "FLAG_FIRST is not on the first row alone");
  Expect(!is_first || !is_resumed, "a first row is a resumed one");
  record.started = true;
  work_.num_resumptions += is_resumed ? 1 : 0;
  const std::int32_t ctx_len = step.ctx_len[row];
  const std::int32_t kv_len = step.kv_len[row];
  const std::int32_t num_again = std::min(kv_len, record.num_computed_once) - ctx_len;
  work_.num_recomputed_tokens += std::max(num_again, 0);
  work_.num_computed_tokens += step.q_len[row];
  record.num_computed_once = std::max(record.num_computed_once, kv_len);
  if (is_first && listener_ != nullptr) {
    Expect(step.reused_tokens[row] <= ctx_len, "more reused tokens than there are");
    listener_->OnStart(handle, step.reused_tokens[row]);
  }
}

void GhostEngine::TakeResult(const StepBuffers& step, std::int32_t row) {
  const Handle handle = step.handle[row];
  Record& record = RecordOf(handle);
  --record.num_rows_in_flight;
  const std::int32_t* result = step.result + static_cast<std::size_t>(row) * kResultColumns;
  const bool samples = (step.flags[row] & kFlagSample) != 0;
  if (!record.live) {
    Expect(std::all_of(result, result + kResultColumns, [](auto value) { return value == 0; }),
           "I22: a row of an ended request has a result");
  }
  if (result[0] == 0) {
    Expect(result[1] == 0, "a finish reason without a token");
    work_.num_void_samples += samples ? 1 : 0;
    Forget(handle);
    return;
  }
  Expect(result[0] == 1 && samples, "a token without a sample");
  ++record.num_output;
  ++work_.num_outputs;
  Expect(result[2] == record.num_output, "I19: an output token is lost or told twice");
  const std::int32_t num_known = record.stream.num_prompt() + record.num_output;
  Expect(step.kv_len[row] == num_known - 1, "I21: a token at a wrong position");
  Expect(step.tokens[row] == record.stream.token(num_known - 1), "I20: a wrong output token");
  const FinishReason reason = ReasonFor(record);
  Expect(result[1] == static_cast<std::int32_t>(reason), "a wrong finish reason");
  if (listener_ != nullptr) {
    listener_->OnToken(handle, record.num_output);
  }
  if (reason != FinishReason::kNone) {
    End(record);
    if (listener_ != nullptr) {
      listener_->OnEnd(handle, record.stream, record.num_output);
    }
    Forget(handle);
  }
}

FinishReason GhostEngine::ReasonFor(Record& record) const {
  const std::int32_t num_known = record.stream.num_prompt() + record.num_output;
  const TokenId token = record.stream.token(num_known - 1);
  if (std::ranges::find(record.end_ids, token) != record.end_ids.end()) {
    return FinishReason::kEndId;
  }
  if (std::ranges::find(record.stop_ids, token) != record.stop_ids.end()) {
    return FinishReason::kStopId;
  }
  if (record.num_output >= record.max_output) {
    return FinishReason::kMaxOutputTokens;
  }
  if (num_known >= config_.max_context_tokens) {
    return FinishReason::kContextFull;
  }
  return FinishReason::kNone;
}

void GhostEngine::End(Record& record) {
  record.live = false;
  --num_live_;
  num_held_ -= record.held ? 1 : 0;
}

// Keeps what rows in flight are still compared with.
void GhostEngine::Forget(Handle handle) {
  const Record& record = RecordOf(handle);
  if (!record.live && record.num_rows_in_flight == 0) {
    records_.erase(handle);
  }
}

}  // namespace antiphon::ghost
