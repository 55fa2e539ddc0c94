#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "antiphon/batch_plan.h"
#include "antiphon/capacity.h"
#include "antiphon/kv_cache.h"
#include "antiphon/micro_batcher.h"
#include "antiphon/request_table.h"
#include "antiphon/scope_table.h"
#include "antiphon/types.h"
#include "antiphon/wait_queue.h"

namespace antiphon {

struct CoreConfig {
  std::int32_t num_blocks = 0;  // scratch included
  std::int32_t block_tokens = 0;
  std::int32_t max_rows = 0;
  std::int32_t max_step_tokens = 0;
  std::int32_t max_context_tokens = 0;
  std::int32_t max_requests = 0;
  std::int32_t chunk_tokens = 0;
  std::int32_t num_buffer_sets = 2;
  bool prefix_reuse = true;
};

struct SubmitSpec {
  std::span<const TokenId> prompt = {};
  ScopeId scope = 0;
  std::int32_t max_output_tokens = 0;
  std::span<const TokenId> end_ids = {};
  std::span<const TokenId> stop_ids = {};
  std::uint64_t seed = 0;
  std::int32_t output_index = 0;
  std::int32_t priority = 0;
  std::uint32_t flags = 0;
  std::int32_t adapter = 0;
  Handle leader = 0;
};

struct CoreStats {
  StepId step = 0;
  std::int64_t num_running = 0;
  std::int64_t num_waiting = 0;
  std::int64_t num_paused = 0;
  std::int64_t num_blocks = 0;  // without scratch
  std::int64_t num_blocks_used = 0;
  std::int64_t num_blocks_cached = 0;
  std::int64_t num_blocks_free = 0;
  std::int64_t num_prefilled_tokens_total = 0;
  std::int64_t num_reused_tokens_total = 0;
  std::int64_t num_generated_tokens_total = 0;
  std::int64_t num_preemptions_total = 0;
  std::int64_t num_evictions_total = 0;
};

// The owner of all scheduling state. A step is planned into a set of buffers, executed by the
// caller and committed; one step is in flight at most.
//
// Invariants (beside those of its parts):
//  1. A request that was accepted ends once: by a finish reason in a result, or by Abort or Finish.
//  2. A request that runs is in every step that has room for it; those that decode come first.
//  3. Blocks of a request with a row in flight are held until that row is committed.
//
// Complexity: Plan is O(rows + new blocks + admissions), Commit O(rows). A request that waits costs
// nothing; the head of the queue is probed again only when more blocks or more prefixes are there.
//
// Not thread-safe.
class EngineCore {
 public:
  // Throws std::invalid_argument, with what to change, where the numbers do not work together.
  explicit EngineCore(const CoreConfig& config);

  // The least capacity of StepBuffers::table_delta: the blocks of one whole context and two for
  // each row that decodes meanwhile (a new block, and one that has moved), so that nothing waits
  // for room for ever. Never more than the blocks of a context for each row.
  std::int32_t min_table_deltas() const;

  // Throws std::invalid_argument where there is no such set or the buffers are too small.
  void RegisterBuffers(std::int32_t set_index, const StepBuffers& buffers);

  ScopeId InternScope(const ScopeFields& fields) { return scopes_.Intern(fields); }

  // Throws std::invalid_argument, NeverFitsError or QueueFullError; then nothing has changed.
  Handle Submit(const SubmitSpec& spec);

  // Both return false if the request has ended already.
  bool Abort(Handle handle);
  bool Finish(Handle handle, std::int32_t keep_output_tokens);

  // Returns 0 if nothing can run.
  // REQUIRES: the set is registered; no step is in flight
  StepId Plan(std::int32_t set_index);

  // REQUIRES: `step` is in flight; tokens and num_tokens of its buffers are written
  void Commit(StepId step);

  // Leading tokens with KV cache, in whole blocks.
  std::int32_t MatchPrefix(ScopeId scope, std::span<const TokenId> tokens) const;

  std::int32_t FlushPrefixCache() { return cache_.Flush(); }

  CoreStats stats() const;
  const CoreConfig& config() const { return config_; }

  // Throws InvariantError that names what is broken. O(blocks + requests + known tokens).
  void CheckInvariants() const;

  // The whole state as JSON.
  std::string DumpState() const;

 private:
  struct PlannedRow {
    Handle handle;
    std::uint32_t epoch;
    std::int32_t q_len;
    bool samples;
  };
  struct BufferSet {
    StepBuffers buffers;
    bool registered = false;
    StepId step = 0;  // 0: none in flight
    std::vector<PlannedRow> rows;
  };
  // What the head of the queue was refused on; while it stands, the head is not probed again.
  struct Refusal {
    Handle handle = 0;
    std::uint64_t num_publications = 0;
    std::int32_t num_unreserved = 0;
    bool operator==(const Refusal&) const = default;
  };
  struct Step;

  void CheckSpec(const SubmitSpec& spec) const;
  void Enqueue(Request& request);

  void PlanRunning(RequestState state, Step& step);
  void PlanAdmissions(Step& step);
  bool Admit(Request& request, Step& step);
  void PlanRow(Request& request, std::int32_t q_len, bool is_first, Step& step);

  void CommitRow(const PlannedRow& row, TokenId token, std::int32_t num_tokens,
                 std::int32_t* result);
  void Publish(Request& request);
  FinishReason AppendToken(Request& request, TokenId token);
  void WakeFollowers(Request& request);

  void End(Request& request, std::int32_t num_wanted_tokens);
  void Free(Request& request, std::int32_t num_wanted_tokens);

  void CheckRequest(const Request& request) const;

  CoreConfig config_;
  ScopeTable scopes_;
  KvCache cache_;
  RequestTable requests_;
  WaitQueue queue_;
  NoEvictCapacity capacity_;
  MicroBatcher batcher_;
  std::vector<BufferSet> sets_;
  std::vector<Handle> running_;  // in order of admission
  std::vector<SlotId> free_slots_;
  PrefixMatch match_;  // scratch of Admit, kept for its memory
  Refusal refusal_;
  std::uint64_t next_arrival_ = 1;
  StepId last_step_ = 0;
  std::int32_t num_steps_in_flight_ = 0;
  std::int64_t num_waiting_ = 0;
  std::int64_t num_prefilled_ = 0;
  std::int64_t num_reused_ = 0;
  std::int64_t num_generated_ = 0;
};

}  // namespace antiphon
