#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "antiphon/batch_plan.h"
#include "antiphon/capacity.h"
#include "antiphon/kv_cache.h"
#include "antiphon/micro_batcher.h"
#include "antiphon/request_table.h"
#include "antiphon/scope_table.h"
#include "antiphon/session_table.h"
#include "antiphon/types.h"
#include "antiphon/wait_queue.h"

namespace antiphon {

// Faults on purpose, to see what they do. 0: never.
struct FaultKnobs {
  std::int32_t pause_every = 0;  // plans, after which the latest request that can be is paused
  std::int32_t miss_every = 0;   // prefix lookups, of which one finds nothing
  std::int32_t fail_host_allocation_every = 0;
  std::int32_t max_admissions = 0;  // after so many, nobody is admitted any more
};

struct CoreConfig {
  std::int32_t num_blocks = 0;  // on the device, scratch included
  std::int32_t block_tokens = 0;
  std::int32_t max_rows = 0;
  std::int32_t max_step_tokens = 0;
  std::int32_t max_context_tokens = 0;
  std::int32_t max_requests = 0;
  std::int32_t chunk_tokens = 0;
  std::int32_t num_buffer_sets = 2;
  std::int32_t run_ahead = 0;  // steps that may be in flight while another is planned

  CapacityPolicy capacity_policy = CapacityPolicy::kGuaranteedNoEvict;
  ChunkPolicy chunk_policy = ChunkPolicy::kFirstComeFirstServed;
  std::int32_t watermark_blocks = -1;
  std::int32_t cooldown_steps = 8;
  std::int32_t bypass_requests = 8;
  std::int32_t bypass_steps = 256;

  bool prefix_reuse = true;
  bool partial_reuse = true;
  bool prefix_deferral = true;
  std::int32_t num_host_blocks = 0;
  std::int32_t max_step_copies = 0;  // 0: the blocks of one context and one a row
  std::int32_t offload_min_priority = 0;
  std::int32_t offload_min_hits = 0;
  std::int32_t onload_cost_tokens = 0;
  std::int32_t onload_block_cost_tokens = 0;
  std::int32_t num_kv_events = 0;
  std::int32_t max_sessions = 65536;
  std::int32_t stall_passes = 100;
  FaultKnobs faults = {};
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
  std::uint64_t session = 0;  // 0: none
  Retention retention = {};
  std::int64_t arrival_ns = 0;  // when the engine was asked; told again by Times
  // Leading tokens that may be taken from the cache. The others are computed once by the request
  // itself, each in some step, since the caller wants what the model says there.
  std::int32_t num_reusable = kAllTokens;
};

struct CoreStats {
  StepId step = 0;
  std::int64_t num_running = 0;
  std::int64_t num_waiting = 0;  // those paused not counted
  std::int64_t num_paused = 0;
  std::int64_t num_held = 0;    // those whose last rows are in flight still count as running
  std::int64_t num_blocks = 0;  // without scratch
  std::int64_t num_blocks_used = 0;
  std::int64_t num_blocks_cached = 0;
  std::int64_t num_blocks_free = 0;
  std::int64_t num_host_blocks = 0;
  std::int64_t num_host_blocks_used = 0;
  std::int64_t num_prefilled_tokens_total = 0;
  std::int64_t num_recomputed_tokens_total = 0;
  std::int64_t num_reused_tokens_total = 0;
  std::int64_t num_generated_tokens_total = 0;
  std::int64_t num_preemptions_total = 0;
  std::int64_t num_evictions_total = 0;
  std::int64_t num_offloads_total = 0;
  std::int64_t num_onloads_total = 0;
  std::int64_t num_copies_on_write_total = 0;
  std::int64_t num_deferrals_total = 0;
  std::int64_t num_bypasses_total = 0;
};

// The owner of all scheduling state. A step is planned into a set of buffers, executed by the
// caller and committed; up to `run_ahead` steps are in flight while another is planned.
//
// Invariants (beside those of its parts):
//  1. A request that was accepted ends once: by a finish reason in a result, or by Abort or Finish.
//  2. Running requests are in the order of their right to run: priority, then arrival. Those that
//     decode come first in a step; nobody who runs is passed over while there is room.
//  3. Blocks of a request with a row in flight are held until that row is committed. So a block
//     that is free is used by no step in flight, and may be the destination of a copy.
//  4. Only a request without a row in flight is paused, and only for one that precedes it or for
//     want of memory of its own.
//  5. A request that is held gets no row. It holds blocks and a slot only as long as rows that were
//     in flight are, whose tokens count; then nobody waits for it or because of it.
//
// Complexity: Plan is O(rows + new blocks + admissions), Commit O(rows). A request that waits or is
// held costs nothing; those at the head of the queue are looked at again only when that could help.
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

  // Stops work on a request, in any phase, and lets its blocks go to the cache; its tokens stay,
  // and so does its place among `max_requests`. Those who wait for its prompt wait no longer.
  // Release lets it go on where it was, in its old place in line. Both return false if the request
  // has ended, and change nothing the second time.
  bool Hold(Handle handle);
  bool Release(Handle handle);

  // Gives a request no rows from the next plan on; rows in flight go on. It keeps its blocks and
  // its place, so that others may wait for it: its caller lets it rejoin soon. Both return false if
  // the request has ended, and change nothing the second time.
  bool SitOut(Handle handle);
  bool Rejoin(Handle handle);

  // Returns 0 if nothing can run. `now_ns`: a clock that never goes back.
  // Throws StalledError after `stall_passes` calls in a row that found nothing to run while
  // requests wait, no step is in flight and nobody who runs sits out.
  // REQUIRES: the set is registered and not in flight; at most `run_ahead` steps are in flight
  StepId Plan(std::int32_t set_index, std::int64_t now_ns = 0);

  // A row that was to bring a token and has `num_tokens` 0 brings none: its last token is computed
  // again by the request's next row.
  // REQUIRES: `step` is the oldest in flight; tokens and num_tokens of its buffers are written, its
  // copies carried out; no other row of a request that brings no token is in flight
  // `now_ns`: when that was done, on the clock of Plan.
  void Commit(StepId step, std::int64_t now_ns = 0);

  // What happened to a request so far, also to one that has ended; nothing once its place has been
  // used again, which no earlier than the next Submit does.
  std::optional<RequestTimes> Times(Handle handle) const;

  // The request's prompt and output so far; empty if it is gone.
  std::span<const TokenId> Tokens(Handle handle) const;

  // Sessions' tips: see SessionTable.
  bool RewindSession(std::uint64_t session, std::int64_t num_tokens);
  bool ForkSession(std::uint64_t session, std::uint64_t new_session);
  bool CloseSession(std::uint64_t session);

  // Leading tokens with KV cache, in whole blocks.
  std::int32_t MatchPrefix(ScopeId scope, std::span<const TokenId> tokens) const;

  std::int32_t FlushPrefixCache() { return cache_.Flush(); }

  CoreStats stats() const;
  const CoreConfig& config() const { return config_; }
  const KvCache& cache() const { return cache_; }
  const ScopeTable& scopes() const { return scopes_; }

  // Throws InvariantError that names what is broken. O(blocks + requests + known tokens).
  void CheckInvariants() const;

  // The whole state as JSON.
  std::string DumpState() const;

  // Who waits for what, in a few lines: what StalledError says.
  std::string Census() const;

 private:
  struct RowShape {
    std::int32_t q_len = 0;
    bool samples = false;
    bool ends_prompt = false;

    // Whether it computes known tokens, be it the last of them.
    bool is_chunk() const { return ends_prompt || !samples; }
  };
  struct PlannedRow {
    Request* request = nullptr;  // keeps its place until the row is committed
    std::uint32_t epoch = 0;
    RowShape shape;
  };
  struct BufferSet {
    StepBuffers buffers;
    bool registered = false;
    StepId step = 0;  // 0: none in flight
    std::int64_t planned_ns = 0;
    std::vector<PlannedRow> rows;
    StepHolds holds;
    std::vector<BlockId> left_blocks;  // that chains have left while the step could touch them
  };
  // A block that a request computes in this step, and that others may wait for.
  struct Contribution {
    ScopeId scope;
    NodeId parent;
    std::uint64_t hash;
    Handle handle;
  };
  enum class Admission : std::uint8_t { kAdmitted, kDeferred, kNoMemory, kNoRoom };
  struct Step;

  // engine_core.cc
  void CheckSpec(const SubmitSpec& spec) const;
  void Enqueue(Request& request);

  // planning.cc
  void PlanDecodes(Step& step);
  void PlanPrefillsInOrder(Step& step);
  void PlanPrefillsEqually(Step& step);
  bool TakeNextBlock(Request& request, Step& step);
  bool PlanChunk(Request& request, std::int32_t q_len, Step& step);
  void NoteRow(Request& request, RowShape shape, Step& step);
  void NoteReuse(const Request& request, std::int32_t end);
  void TakeBlocks(Request& request, std::int32_t count);
  void NoteContribution(const Request& request);
  void ContinueOnloads();
  void Onload(Request& request);
  void NoteEmptyPlan();

  // admission.cc
  void PlanAdmissions(Step& step);
  bool HasPlace() const;
  bool NotePassing();
  bool MayBePassed(const Request& request) const;
  Admission TryAdmit(Request& request, Step& step);
  bool HasTokensFor(const Request& request) const;
  bool HasRowFor(const Request& request) const;
  std::int32_t BlocksToPromise(const Request& request) const;
  bool IsRefusedStill(const Request& request, std::int32_t headroom) const;
  void MatchPrompt(const Request& request);
  bool IsContributed(const Request& request) const;
  void Admit(Request& request);

  // pausing.cc
  bool MakeRoom(Request& request, std::int32_t num_blocks, Step& step);
  std::int32_t NumOwnBlocks(const Request& request) const;
  void Pause(Request& request);
  void PauseOnPurpose();
  NodeId Suspend(Request& request, bool held);

  // holding.cc
  void LetRest(Request& request);
  void LeaveLine(Request& request);

  // committing.cc
  FinishReason CommitRow(const BufferSet& set, std::size_t index);
  void NoteCommitted(Request& request, const BufferSet& set, RowShape shape);
  void CommitVoid(Request& request);
  void Publish(Request& request);
  void PublishPromptTail(const Request& request);
  void ReleaseLater(BlockId block);
  FinishReason ReasonToEnd(const Request& request, TokenId token) const;
  void WakeFollowers(Request& request);
  void End(Request& request, std::int32_t num_wanted);
  void Retire(Request& request, std::int32_t num_wanted);
  void CloseTimes(const Request& request);
  void Drain(Request& request, std::int32_t num_wanted);
  void Free(Request& request, std::int32_t num_valid, std::int32_t num_wanted);
  void GiveBack(Request& request);
  NodeId ReleaseChain(Request& request, std::int32_t num_valid, std::int32_t num_wanted);

  // invariants.cc
  void CheckRequest(const Request& request) const;
  void CheckReferences() const;

  BufferSet& SetOf(StepId step);

  CoreConfig config_;
  ScopeTable scopes_;
  KvCache cache_;
  SessionTable sessions_;
  RequestTable requests_;
  WaitQueue queue_;
  Capacity capacity_;
  MicroBatcher batcher_;
  std::vector<BufferSet> sets_;
  std::vector<Request*> running_;  // in the order of their right to run
  std::vector<SlotId> free_slots_;
  std::vector<Contribution> contributions_;  // of the step that is planned
  std::vector<Chunk> chunks_;                // scratch of PlanPrefillsEqually
  std::vector<Handle> passed_;               // scratch of PlanAdmissions and PlanPrefillsEqually
  PrefixMatch match_;                        // scratch of TryAdmit
  std::uint64_t next_arrival_ = 1;
  std::int64_t num_plans_ = 0;
  std::int64_t now_ns_ = 0;  // as told last
  StepId last_step_ = 0;
  std::int32_t num_steps_in_flight_ = 0;
  std::int32_t num_empty_plans_ = 0;  // in a row
  std::int64_t num_waiting_ = 0;      // those paused included
  std::int64_t num_paused_ = 0;
  std::int64_t num_held_ = 0;
  std::int64_t num_lookups_ = 0;
  std::int64_t num_admissions_ = 0;
  bool pause_is_due_ = false;
  std::int64_t num_prefilled_ = 0;
  std::int64_t num_recomputed_ = 0;
  std::int64_t num_reused_ = 0;
  std::int64_t num_generated_ = 0;
  std::int64_t num_preemptions_ = 0;
  std::int64_t num_deferrals_ = 0;
  std::int64_t num_bypasses_ = 0;
};

}  // namespace antiphon
