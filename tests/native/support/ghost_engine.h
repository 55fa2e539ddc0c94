#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <unordered_map>
#include <vector>

#include "antiphon/engine_core.h"
#include "fake_model.h"
#include "ghost_device.h"
#include "step_arrays.h"

namespace antiphon::ghost {

// Hears of requests what a front end would. Calls come from inside Plan and Commit of the engine;
// they may not call it.
class Listener {
 public:
  virtual ~Listener() = default;
  // The first row was planned.
  virtual void OnStart(Handle handle, std::int32_t num_reused) = 0;
  virtual void OnToken(Handle handle, std::int32_t num_output) = 0;
  // It ended by itself; `stream` goes away afterwards.
  virtual void OnEnd(Handle handle, Stream& stream, std::int32_t num_output) = 0;
};

// What became of the tokens that were computed.
struct Work {
  std::int64_t num_steps = 0;
  std::int64_t num_rows = 0;
  std::int64_t num_computed_tokens = 0;
  std::int64_t num_recomputed_tokens = 0;  // that the same request had computed before
  std::int64_t num_void_samples = 0;       // sampled for requests that had ended
  std::int64_t num_withheld = 0;           // rows that were to bring a token and brought none
  std::int64_t num_outputs = 0;
  std::int64_t num_resumptions = 0;
  double core_cpu_s = 0;  // inside Plan and Commit
};

// A core with a ghost device behind it, and the knowledge of what each request must give.
//
// Checks that accepted requests end once, with the right tokens and reason, that rows of ended
// requests change nothing, that nobody reads more of the cache than he may, and that nothing is
// written again that others may read. Throws Contradiction or what the core throws.
//
// Not thread-safe.
class GhostEngine {
 public:
  struct Options {
    std::int32_t vocabulary = 512;
    std::uint64_t seed = 0;
    bool times_core = false;
  };

  // Whether a row is to bring no token.
  using WantsNone = std::function<bool(std::int32_t row)>;

  GhostEngine(const CoreConfig& config, const Options& options, Listener* listener);

  // Throws as the core does; then nothing has changed.
  Handle Submit(const SubmitSpec& spec);

  // All tell whether the request was live.
  bool Abort(Handle handle);
  bool Finish(Handle handle, std::int32_t keep_output_tokens);
  bool Hold(Handle handle);
  bool Release(Handle handle);
  bool SitOut(Handle handle);
  bool Rejoin(Handle handle);

  bool can_plan() const;
  bool can_execute() const { return num_executed_ < in_flight_.size(); }
  bool can_commit() const { return num_executed_ > 0; }

  // Returns false if nothing could run. REQUIRES: can_plan()
  bool Plan(std::int64_t now_us);
  // The oldest step that is not executed. Where a row may be withheld, `wants_none` is asked; then
  // its request sits out until the step is committed. REQUIRES: can_execute()
  void Execute(const WantsNone& wants_none = nullptr);
  // The oldest step. REQUIRES: can_commit()
  void Commit();

  // Checks that requests, sessions and cache leave nothing behind.
  // REQUIRES: no request is live, no step in flight, no session open
  void CheckNothingLeft();

  // Checks that whoever was promised all his memory and got a row has come to his end, although
  // others sit out. REQUIRES: nothing can be planned, no step is in flight
  void CheckSittersHinderNobody() const;

  bool IsLive(Handle handle) const;
  std::size_t num_live() const { return num_live_; }
  // Of those, whoever rests by the caller's wish.
  std::size_t num_held() const { return num_held_; }
  std::size_t num_sitting_out() const { return num_sitting_out_; }
  // Whether a live request gets no rows by the caller's wish.
  bool Rests(Handle handle) const;
  std::size_t num_in_flight() const { return in_flight_.size(); }
  const Work& work() const { return work_; }
  EngineCore& core() { return core_; }
  const StepBuffers& last_plan() const { return sets_[last_set_]->buffers(); }

 private:
  struct Record {
    Stream stream;
    std::int32_t max_output;
    std::vector<TokenId> end_ids;
    std::vector<TokenId> stop_ids;
    std::int32_t num_reusable;
    bool live = true;
    bool held = false;
    bool was_held = false;
    bool sits_out = false;  // by the caller's wish
    bool withheld = false;  // a row in flight brings no token, so that it sits out too
    bool started = false;
    std::int32_t num_output = 0;
    std::int32_t num_computed_once = 0;
    std::int32_t num_recomputed = 0;
    std::int32_t num_rows_in_flight = 0;
    std::int32_t num_rows_committed = 0;
    StepId last_step = 0;  // that has a row of it
  };
  struct InFlight {
    StepId step;
    std::size_t set;
  };
  class Stopwatch;

  Record& RecordOf(Handle handle);
  bool may_pause() const;
  void NotePlannedRow(const StepBuffers& step, std::int32_t row);
  void CheckWrites(const StepBuffers& step, std::int32_t row) const;
  void CheckReuse(const StepBuffers& step, std::int32_t row, const Record& record) const;
  std::vector<bool> Withhold(const InFlight& in_flight, const WantsNone& wants_none);
  void TakeNoToken(const StepBuffers& step, std::int32_t row, Record& record);
  void TakeResult(const StepBuffers& step, std::int32_t row);
  void CopyNext();
  FinishReason ReasonFor(Record& record) const;
  void End(Handle handle, Record& record);
  void Forget(Handle handle);

  CoreConfig config_;
  Options options_;
  Listener* listener_;
  EngineCore core_;
  GhostDevice device_;
  Dice dice_;
  std::vector<std::unique_ptr<StepArrays>> sets_;
  std::deque<InFlight> in_flight_;
  std::size_t num_copied_ = 0;    // leading ones of in_flight_
  std::size_t num_executed_ = 0;  // leading ones of those
  std::size_t last_set_ = 0;
  std::unordered_map<Handle, Record> records_;
  std::size_t num_live_ = 0;
  std::size_t num_held_ = 0;
  std::size_t num_sitting_out_ = 0;
  Work work_;
};

}  // namespace antiphon::ghost
