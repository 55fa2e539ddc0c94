"""C++ core of the engine: schedules requests and owns the paged, prefix-reusing KV cache.

All calls come from the engine's one thread; none calls back into Python. `plan` and `commit`
release the GIL and touch only arrays that were registered beforehand.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

# Bits of StepBuffers.flags. Those below 1 << 8 are set by the core; callers may pass the others to
# `submit`, which echoes them in every row of the request.
FLAG_PREFILL: Final[int]  # the row computes known tokens: a prompt's, or a resumed request's
FLAG_SAMPLE: Final[int]  # the row's last position is sampled: a decode row or a prompt's last chunk
FLAG_FIRST: Final[int]  # the request's first row since submit; `reused_tokens` holds for it
FLAG_RESUMED: Final[int]  # its first row since a pause: the slot is new, output tokens are there
FLAG_LOGPROBS: Final[int]
FLAG_PENALTIES: Final[int]
FLAG_BIAS: Final[int]
FLAG_MIN_TOKENS: Final[int]
FLAG_GUIDED: Final[int]
FLAG_PROMPT_LOGPROBS: Final[int]

# Fields of StepBuffers.header.
HEADER_NUM_ROWS: Final[int]
HEADER_NUM_TOKENS: Final[int]
HEADER_NUM_TABLE_DELTAS: Final[int]
HEADER_NUM_COPIES: Final[int]
HEADER_NUM_PREFILL_ROWS: Final[int]
HEADER_NUM_DECODE_ROWS: Final[int]
HEADER_NUM_SAMPLES: Final[int]
HEADER_NUM_SLOT_INITS: Final[int]
HEADER_STEP_ID: Final[int]

# Values of copy_ops' first column, and of its second. A step's copies run before its computation:
# first those that offload, then those that onload, then those on write; each group in any order.
COPY_OFFLOAD: Final[int]  # from the device to the host
COPY_ONLOAD: Final[int]  # from the host to the device
COPY_ON_WRITE: Final[int]  # from either into a device block that its request goes on filling
TIER_DEVICE: Final[int]
TIER_HOST: Final[int]

# Values of the result array's second column.
FINISH_NONE: Final[int]
FINISH_END_ID: Final[int]
FINISH_STOP_ID: Final[int]
FINISH_MAX_OUTPUT_TOKENS: Final[int]
FINISH_CONTEXT_FULL: Final[int]

class NeverFitsError(ValueError):
    """The request alone needs more KV blocks than the pool has; args are (needed, available)."""

class QueueFullError(RuntimeError):
    """As many requests as the core can hold are there already."""

class InvariantError(RuntimeError):
    """The core contradicts itself: a bug. The engine process must end."""

class StalledError(RuntimeError):
    """Requests wait, nothing runs, and nothing will change that. The message has a census."""

CAPACITY_POLICIES: Final[tuple[str, ...]]
"""guaranteed_no_evict, max_utilization, static_batch."""
CHUNK_POLICIES: Final[tuple[str, ...]]
"""first_come_first_served, equal_progress."""

class EngineCore:
    """Request table, capacity and micro-batch scheduling, block pool and prefix index as one."""

    def __init__(
        self,
        *,
        num_blocks: int,
        block_tokens: int,
        max_rows: int,
        max_step_tokens: int,
        max_context_tokens: int,
        max_requests: int,
        chunk_tokens: int = 0,
        num_buffer_sets: int = 2,
        prefix_reuse: bool = True,
        partial_reuse: bool = True,
        prefix_deferral: bool = True,
        capacity_policy: str = "guaranteed_no_evict",
        chunk_policy: str = "first_come_first_served",
        watermark_blocks: int = -1,
        cooldown_steps: int = 8,
        bypass_requests: int = 8,
        bypass_steps: int = 256,
        run_ahead: int = 0,
        num_host_blocks: int = 0,
        max_step_copies: int = 0,
        offload_min_priority: int = 0,
        offload_min_hits: int = 0,
        onload_cost_tokens: int = 0,
        onload_block_cost_tokens: int = 0,
        num_kv_events: int = 0,
        max_sessions: int = 65536,
        stall_passes: int = 100,
        pause_every: int = 0,
        miss_every: int = 0,
        fail_host_allocation_every: int = 0,
        max_admissions: int = 0,
    ) -> None:
        """Block 0 is scratch.

        Args:
            num_blocks: on the device, scratch included.
            block_tokens: tokens of a block.
            max_rows: rows of a step, and so requests that run.
            max_step_tokens: tokens of a step.
            max_context_tokens: prompt and output of a request together.
            max_requests: those that run and those that wait.
            chunk_tokens: bounds one request's prompt tokens in a step (0: the step's budget alone
                does). At most `max_step_tokens - block_tokens + 1` requests run at once, so that a
                prompt always gets at least a block of the budget beside those that decode.
            num_buffer_sets: at least `run_ahead` + 1.
            prefix_reuse: whether prompts reuse what others have computed.
            partial_reuse: whether the beginning of a block is reused too, by copying it.
            prefix_deferral: whether a request waits for a block that another computes this step.
            capacity_policy: who may hold memory. `guaranteed_no_evict` admits a request when all
                that it can need is there; `max_utilization` when its prompt is, and pauses the
                latest where that was too bold; `static_batch` like the first, but a batch only
                when the one before has ended.
            chunk_policy: how prompts share a step's tokens: in order, or a block each in turn.
            watermark_blocks: under max_utilization, blocks that an admission leaves free while
                others run; -1: one hundredth of the pool, and one for each that runs.
            cooldown_steps: under max_utilization, steps without admissions after a pause.
            bypass_requests: how many later requests may be admitted before one that doesn't fit.
            bypass_steps: for how many steps they may.
            run_ahead: 0, 1 or 2: steps that may be in flight while another is planned.
            num_host_blocks: blocks of the host tier, numbered from 1.
            max_step_copies: rows of `copy_ops` that a step may use, which bounds bytes in flight;
                0: the blocks of one context and one a row.
            offload_min_priority: evicted blocks of a lower retention priority are dropped.
            offload_min_hits: so are those that were matched less often.
            onload_cost_tokens: what onloading costs, in tokens that could be prefilled meanwhile;
                where that is more than the prefix on the host has, it is recomputed.
            onload_block_cost_tokens: what it costs beside that for each block.
            num_kv_events: events that are kept for readers.
            max_sessions: sessions whose tip is remembered; the one used longest ago is forgotten.
            stall_passes: plans in a row that may find nothing to run while requests wait.
            pause_every: a fault on purpose: every so many plans, the latest request that decodes is
                paused; 0: never, here and below.
            miss_every: every so many prefix lookups, one finds nothing.
            fail_host_allocation_every: every so many host allocations, one fails.
            max_admissions: after so many, nobody is admitted any more, so that the core stalls.

        Raises:
            ValueError: a step or a chunk is smaller than a block, or a number is too small.
        """

    def register_buffers(
        self,
        set_index: int,
        *,
        header: NDArray[np.int32],  # [16]
        handle: NDArray[np.uint64],  # [B]
        epoch: NDArray[np.uint32],  # [B]
        slot: NDArray[np.int32],  # [B]
        adapter: NDArray[np.int32],  # [B], 0: none
        flags: NDArray[np.uint32],  # [B]
        q_len: NDArray[np.int32],  # [B]
        cu_q: NDArray[np.int32],  # [B + 1]
        ctx_len: NDArray[np.int32],  # [B] KV length before this step
        kv_len: NDArray[np.int32],  # [B] KV length after it
        reused_tokens: NDArray[np.int32],  # [B] prompt tokens taken from the cache; with FLAG_FIRST
        output_position: NDArray[np.int32],  # [B] index of the output token that the row samples
        uniform: NDArray[np.float64],  # [B] in [0, 1), from seed, output index and output position
        sample_indptr: NDArray[np.int32],  # [B + 1] into sample_rows; equal neighbours: none
        sample_rows: NDArray[np.int32],  # [B] token indices whose hidden state is sampled
        input_ids: NDArray[np.int32],  # [T]
        gather_slot: NDArray[np.int32],  # [T] slot whose last token to read, else -1
        positions: NDArray[np.int32],  # [T]
        slot_mapping: NDArray[np.int64],  # [T] block * block_tokens + offset
        table_delta: NDArray[np.int32],  # [D, 3] (slot, block index, block id): new or changed
        copy_ops: NDArray[np.int32],  # [C, 5] (kind, source tier, source, destination, tokens)
        slot_init: NDArray[np.int32],  # [B] rows whose slot has a new owner
        tokens: NDArray[np.int32],  # [B, 1] written by the executor before commit
        num_tokens: NDArray[np.int32],  # [B] likewise: sampled tokens of each row, 0 or 1
        result: NDArray[
            np.int32
        ],  # [B, 4] by commit: new tokens, finish reason, output tokens, steps
    ) -> None:
        """Tells where set `set_index` lies. The arrays are C-contiguous and kept alive by the core.

        Let M be the blocks of a context: D is at least M + 2 * B or M * B, whichever is less, and C
        is at least `max_step_copies`.

        Raises:
            ValueError: an array is missing, too small, read-only, or of another type or order.
        """

    def intern_scope(self, *, tenant: str, cache_scope: str, adapter: str, weights: str) -> int:
        """Returns the id of a reuse scope: only requests of equal scope share prefixes.

        An id means the same scope for ever. It stays known while a request or a cached block uses
        it; of the others, the 1024 that were used last do. So ask again before each submit.
        """

    def submit(
        self,
        prompt: NDArray[np.int32],
        *,
        scope: int,
        max_output_tokens: int,
        end_ids: NDArray[np.int32],
        stop_ids: NDArray[np.int32],
        seed: int,
        output_index: int = 0,
        priority: int = 50,
        flags: int = 0,
        adapter: int = 0,
        leader: int = 0,
        session: int = 0,
        retention_priority: int = 50,
        retention_us: int = 0,
        arrival_ns: int = 0,
        num_reusable: int = 2147483647,
    ) -> int:
        """Queues a request and returns its handle, which is never 0. Copies the arrays.

        With a `leader`, it waits until that request's prompt is computed or gone, so that it can
        reuse it. With a `session` (any number but 0), its end becomes the session's tip, and the
        blocks of the tip before that no longer lead there are the first to be evicted. Its blocks
        stay cached with `retention_priority`, 0 (first to go) to 100, which falls to 0 after
        `retention_us` microseconds without use (0: never). Hints all: memory pressure always wins.
        `arrival_ns` is only told again by `times`.
        Of its tokens the first `num_reusable` at most are taken from the cache; the others are
        computed once by the request itself.

        Raises:
            ValueError: the prompt is empty, or prompt and one output token exceed the context, or
                another argument is out of range.
            NeverFitsError: it could not run even alone.
            QueueFullError: `max_requests` are there already.
        """

    def abort(self, handle: int) -> bool:
        """Ends a request in any phase and frees what it holds. False if it has ended already."""

    def finish(self, handle: int, keep_output_tokens: int) -> bool:
        """Ends a request of which the first output tokens are wanted. False if it has ended.

        Cached blocks with later tokens that nobody else uses are forgotten.
        """

    def hold(self, handle: int) -> bool:
        """Stops work on a request, in any phase; false if it has ended.

        Rows in flight are still committed, and their tokens count. Then its blocks go to the cache,
        and nobody waits for it or because of it; it keeps its tokens and its place among
        `max_requests`. Holding what is held changes nothing.
        """

    def release(self, handle: int) -> bool:
        """Lets a request that is held go on, in its old place in line; false if it has ended.

        Its next row has FLAG_RESUMED if it had rows before. Where it isn't held nothing changes.
        """

    def sit_out(self, handle: int) -> bool:
        """Gives a request no rows from the next plan on; false if it has ended.

        Rows in flight go on. It keeps its blocks and its place, so it is for moments: others may
        wait for what it has. Sitting out twice changes nothing.
        """

    def rejoin(self, handle: int) -> bool:
        """Lets a request that sits out have rows again; false if it has ended."""

    def plan(self, set_index: int, now_ns: int = 0) -> int:
        """Fills the buffers of a set with the next step; returns its id, or 0: nothing can run.

        A step may have copies alone and no rows. With `run_ahead` n, up to n steps planned earlier
        may not be committed yet; tokens that those will bring are read on the device: `input_ids`
        has -1 and `gather_slot` the slot. `now_ns`: a clock that never goes back.

        Raises:
            StalledError: after `stall_passes` plans in a row that found nothing to run while
                requests wait and no step is in flight.
        """

    def commit(self, step_id: int, now_ns: int = 0) -> None:
        """Takes the step's `tokens` and `num_tokens`, fills `result`, frees and publishes blocks.

        Steps are committed in the order in which they were planned, when they and their copies have
        been carried out. Rows of requests that ended since the plan, or are of an older epoch,
        change nothing: their result is all zeros. A row that was to bring a token and whose
        `num_tokens` is 0 brings none: the request's next row computes its last token again. No
        other row of that request may be in flight. `now_ns`: when the
        step was carried out.
        """

    def tokens(self, handle: int) -> NDArray[np.int32]:
        """Returns a copy of the request's prompt and output so far; empty if it is gone."""

    def times(
        self, handle: int
    ) -> tuple[dict[str, int], NDArray[np.int64], NDArray[np.int64]] | None:
        """Returns what happened to a request so far or up to its end: counts, chunks, rests.

        The counts are named as in RequestTimes. A chunk is (start, end, first step, steps, tokens,
        rows) and a rest is (start, end, whether held), instants as `plan` and `commit` were told
        them. A request that has ended is known until its place is used again, by a submit; None
        behind that.
        """

    def rewind_session(self, session: int, num_tokens: int) -> bool:
        """Moves a session's tip back to its first `num_tokens` tokens; False if it has no tip.

        What lies behind them and nothing else needs is the first to be evicted. Copies nothing.
        """

    def fork_session(self, session: int, new_session: int) -> bool:
        """Gives `new_session` the tip of `session`; False if that has none. Copies nothing."""

    def close_session(self, session: int) -> bool:
        """Forgets a session; False if it has no tip.

        What nothing else needs of its path is the first to be evicted.
        """

    def path_hashes(self, scope: int, tokens: NDArray[np.int32]) -> NDArray[np.uint64]:
        """Returns, for each whole block of `tokens`, the hash that KV events name it by."""

    def read_kv_events(
        self, after: int, limit: int
    ) -> tuple[list[tuple[int, int, int, int, int, int, int]], bool]:
        """Returns events of blocks stored, removed or moved, and whether some before were lost.

        An event is (sequence, kind, path hash, parent's path hash, scope, tiers, priority); kind is
        1 stored, 2 removed or 3 moved; tiers has bit 0 for the device and bit 1 for the host. The
        parent of a scope's first block is its root. `after`: the sequence read last, 0 at first. A
        reader that lost some takes a snapshot.
        """

    def kv_snapshot(self) -> tuple[int, list[tuple[int, int, int, int, int]]]:
        """Returns the sequence of the last event and all whole blocks, parents first.

        A block is (path hash, parent's path hash, scope, tiers, priority).
        """

    def match_prefix(self, scope: int, tokens: NDArray[np.int32]) -> int:
        """Returns how many leading tokens have their KV cache here, in whole blocks."""

    def flush_prefix_cache(self) -> int:
        """Forgets every cached block that no request uses and returns how many those were."""

    def stats(self) -> dict[str, int]:
        """Returns counters, named as the fields of api.messages.CoreStats.

        Without those that need a clock or finish reasons. `num_blocks` leaves scratch out.
        """

    def check_invariants(self) -> None:
        """Checks the whole state, O(blocks + requests).

        Raises:
            InvariantError: it names what is broken.
        """

    def dump_state(self) -> str:
        """Returns the state as JSON, for logs and tests. It holds no tokens."""
