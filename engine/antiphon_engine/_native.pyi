"""C++ core of the engine: schedules requests and owns the paged, prefix-reusing KV cache.

All calls come from the engine's one thread; none calls back into Python. `plan` and `commit`
release the GIL and touch only arrays that were registered beforehand.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

# Bits of StepBuffers.flags. Those below 1 << 8 are set by the core; callers may pass the others to
# `submit`, which echoes them in every row of the request.
FLAG_PREFILL: Final[int]  # the row computes prompt tokens
FLAG_SAMPLE: Final[int]  # the row's last position is sampled: a decode row or a prompt's last chunk
FLAG_FIRST: Final[int]  # the request's first row since submit; `reused_tokens` holds for it
FLAG_LOGPROBS: Final[int]
FLAG_PENALTIES: Final[int]
FLAG_BIAS: Final[int]
FLAG_MIN_TOKENS: Final[int]
FLAG_GUIDED: Final[int]

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
    ) -> None:
        """Block 0 is scratch. A step has at most `max_rows` rows and `max_step_tokens` tokens.

        `chunk_tokens` bounds one request's prompt tokens in a step (0: the step's budget alone
        does). At most `max_step_tokens - block_tokens + 1` requests run at once, so that a prompt
        always gets at least a block of the budget beside those that decode.

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

        Let M be the blocks of a context: D is at least M + 2 * B or M * B, whichever is less.

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
    ) -> int:
        """Queues a request and returns its handle, which is never 0. Copies the arrays.

        With a `leader`, it waits until that request's prompt is computed or gone, so that it can
        reuse it.

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

    def plan(self, set_index: int) -> int:
        """Fills the buffers of a set with the next step; returns its id, or 0: nothing can run.

        In this release a step is committed before the next is planned.
        """

    def commit(self, step_id: int) -> None:
        """Takes the step's `tokens` and `num_tokens`, fills `result`, frees and publishes blocks.

        Rows of requests that ended since the plan, or are of an older epoch, change nothing: their
        result is all zeros.
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
