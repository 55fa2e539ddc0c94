"""What tests of the native core share: sizes, arrays, and a request as the rules know it."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from antiphon_engine import _native

Buffers = dict[str, NDArray[np.generic]]
Chain = int
"""Stands for a scope and all tokens up to a position."""


def make_buffers(num_rows: int, num_tokens: int, num_table_deltas: int) -> Buffers:
    per_row = ("slot", "adapter", "q_len", "ctx_len", "kv_len", "reused_tokens")
    per_row += ("output_position", "sample_rows", "slot_init", "num_tokens")
    per_token = ("input_ids", "gather_slot", "positions")
    return {
        "header": np.zeros(16, np.int32),
        "handle": np.zeros(num_rows, np.uint64),
        "epoch": np.zeros(num_rows, np.uint32),
        "flags": np.zeros(num_rows, np.uint32),
        "uniform": np.zeros(num_rows, np.float64),
        **{name: np.zeros(num_rows, np.int32) for name in per_row},
        **{name: np.zeros(num_rows + 1, np.int32) for name in ("cu_q", "sample_indptr")},
        **{name: np.zeros(num_tokens, np.int32) for name in per_token},
        "slot_mapping": np.zeros(num_tokens, np.int64),
        "table_delta": np.zeros((num_table_deltas, 3), np.int32),
        "copy_ops": np.zeros((num_rows, 5), np.int32),
        "tokens": np.zeros((num_rows, 1), np.int32),
        "result": np.zeros((num_rows, 4), np.int32),
    }


def planned_rows(buffers: Buffers) -> list[tuple[int, int]]:
    """Each row of a plan with its request's handle."""
    num_rows = int(buffers["header"][_native.HEADER_NUM_ROWS])
    return [(row, int(buffers["handle"][row])) for row in range(num_rows)]


def chains_of(scope: int, tokens: Iterable[int]) -> list[Chain]:
    """The chain after each token."""
    chain, chains = hash((scope, 0, 0)), []
    for token in tokens:
        chain = hash((chain, token))
        chains.append(chain)
    return chains


@dataclass(frozen=True, kw_only=True)
class CoreShape:
    """The sizes of a core, small by default so that every shortage comes soon."""

    num_blocks: int = 9
    block_tokens: int = 2
    max_rows: int = 3
    max_step_tokens: int = 8
    max_context_tokens: int = 24
    max_requests: int = 8
    chunk_tokens: int = 0
    prefix_reuse: bool = True

    @property
    def context_blocks(self) -> int:
        return -(-(self.max_context_tokens - 1) // self.block_tokens)

    @property
    def min_table_deltas(self) -> int:
        return min(self.context_blocks * self.max_rows, self.context_blocks + 2 * self.max_rows)

    @property
    def max_running(self) -> int:
        return min(self.max_rows, self.max_step_tokens - self.block_tokens + 1)

    def make_core(self) -> _native.EngineCore:
        return _native.EngineCore(
            num_blocks=self.num_blocks,
            block_tokens=self.block_tokens,
            max_rows=self.max_rows,
            max_step_tokens=self.max_step_tokens,
            max_context_tokens=self.max_context_tokens,
            max_requests=self.max_requests,
            chunk_tokens=self.chunk_tokens,
            prefix_reuse=self.prefix_reuse,
        )


@dataclass(frozen=True, kw_only=True)
class Ask:
    """What a caller asks for."""

    prompt: tuple[int, ...]
    scope: int
    max_output: int = 4
    end_ids: frozenset[int] = frozenset()
    stop_ids: frozenset[int] = frozenset()
    seed: int = 0
    output_index: int = 0
    priority: int = 50
    leader: int = 0

    def submit_to(self, core: _native.EngineCore) -> int:
        return core.submit(
            np.array(self.prompt, np.int32),
            scope=self.scope,
            max_output_tokens=self.max_output,
            end_ids=np.array(sorted(self.end_ids), np.int32),
            stop_ids=np.array(sorted(self.stop_ids), np.int32),
            seed=self.seed,
            output_index=self.output_index,
            priority=self.priority,
            leader=self.leader,
        )


@dataclass(kw_only=True)
class ModelRequest:
    """What must be true of a request by the rules alone."""

    ask: Ask
    handle: int
    arrival: int
    outputs: list[int] = field(default_factory=list)
    uniforms: list[float] = field(default_factory=list)
    computed: int = 0
    num_steps: int = 0
    reused: int | None = None
    finish: int = _native.FINISH_NONE

    @property
    def tokens(self) -> list[int]:
        return [*self.ask.prompt, *self.outputs]

    @property
    def chains(self) -> list[Chain]:
        return chains_of(self.ask.scope, self.tokens)

    @property
    def started(self) -> bool:
        return self.reused is not None

    def blocks_needed(self, shape: CoreShape) -> int:
        num_prompt = len(self.ask.prompt)
        limit = min(self.ask.max_output, shape.max_context_tokens - num_prompt)
        return -(-(num_prompt + limit - 1) // shape.block_tokens)

    def finish_reason(self, shape: CoreShape) -> int:
        """Why it ends with its last token, if it does."""
        token = self.outputs[-1]
        if token in self.ask.end_ids:
            return _native.FINISH_END_ID
        if token in self.ask.stop_ids:
            return _native.FINISH_STOP_ID
        if len(self.outputs) == self.ask.max_output:
            return _native.FINISH_MAX_OUTPUT_TOKENS
        if len(self.tokens) == shape.max_context_tokens:
            return _native.FINISH_CONTEXT_FULL
        return _native.FINISH_NONE
