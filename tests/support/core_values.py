"""What tests of the native core share: sizes, what callers ask for, arrays, tokens with chains."""

from collections.abc import Iterable
from dataclasses import dataclass, field, fields

import numpy as np
from numpy.typing import NDArray

from antiphon_engine import _native

Buffers = dict[str, NDArray[np.generic]]
Chain = int
"""Stands for a scope and all tokens up to a position."""


class History:
    """A scope's tokens from position 0 on, with the chain after each."""

    def __init__(self, scope: int, tokens: Iterable[int] = ()) -> None:
        self.scope = scope
        self.root: Chain = hash((scope, 0, 0))
        self.tokens: list[int] = []
        self.chains: list[Chain] = []
        for token in tokens:
            self.append(token)

    def append(self, token: int) -> None:
        self.tokens.append(token)
        self.chains.append(next_chain(self.chains[-1] if self.chains else self.root, token))

    def __len__(self) -> int:
        return len(self.tokens)


def next_chain(chain: Chain, token: int) -> Chain:
    return hash((chain, token))


def seeded_uniform(seed: int, output_index: int, position: int) -> float:
    """The core's formula for a row's draw, told a second time."""
    mask, gamma = 2**64 - 1, 0x9E3779B97F4A7C15

    def mix(x: int) -> int:
        x ^= x >> 30
        x = x * 0xBF58476D1CE4E5B9 & mask
        x ^= x >> 27
        x = x * 0x94D049BB133111EB & mask
        return x ^ (x >> 31)

    counter = output_index << 32 | position
    key = mix((seed + gamma) & mask)
    return (mix((key + (counter + 1) * gamma) & mask) >> 11) / 2**53


@dataclass(frozen=True, kw_only=True)
class CoreShape:
    """How a core is made: sizes small by default, so that every shortage comes soon."""

    num_blocks: int = 9
    block_tokens: int = 2
    max_rows: int = 3
    max_step_tokens: int = 8
    max_context_tokens: int = 24
    max_requests: int = 8
    chunk_tokens: int = 0
    num_buffer_sets: int = 4
    prefix_reuse: bool = True
    partial_reuse: bool = True
    prefix_deferral: bool = True
    capacity_policy: str = "guaranteed_no_evict"
    chunk_policy: str = "first_come_first_served"
    watermark_blocks: int = -1
    cooldown_steps: int = 8
    bypass_requests: int = 8
    bypass_steps: int = 256
    run_ahead: int = 0
    num_host_blocks: int = 0
    max_step_copies: int = 0
    offload_min_priority: int = 0
    offload_min_hits: int = 0
    onload_cost_tokens: int = 0
    onload_block_cost_tokens: int = 0
    num_kv_events: int = 0
    max_sessions: int = 65536
    stall_passes: int = 100
    pause_every: int = 0
    miss_every: int = 0
    fail_host_allocation_every: int = 0
    max_admissions: int = 0

    @property
    def context_blocks(self) -> int:
        return -(-(self.max_context_tokens - 1) // self.block_tokens)

    @property
    def min_table_deltas(self) -> int:
        return min(self.context_blocks * self.max_rows, self.context_blocks + 2 * self.max_rows)

    @property
    def copy_limit(self) -> int:
        """Copies that a step may have."""
        return self.max_step_copies or self.context_blocks + self.max_rows

    @property
    def max_running(self) -> int:
        return min(self.max_rows, self.max_step_tokens - self.block_tokens + 1)

    @property
    def exact(self) -> bool:
        """Whether plain rules foretell who is admitted and what is reused, to the last block."""
        plain = self.capacity_policy == "guaranteed_no_evict" and self.bypass_requests == 0
        tiers = self.num_host_blocks or self.partial_reuse or self.prefix_deferral
        faults = self.pause_every or self.miss_every or self.run_ahead
        return plain and not tiers and not faults

    def make_core(self) -> _native.EngineCore:
        return _native.EngineCore(
            **{entry.name: getattr(self, entry.name) for entry in fields(self)}
        )

    def make_buffers(self) -> Buffers:
        rows, tokens = self.max_rows, self.max_step_tokens
        per_row = ("slot", "adapter", "q_len", "ctx_len", "kv_len", "reused_tokens")
        per_row += ("output_position", "sample_rows", "slot_init", "num_tokens")
        return {
            "header": np.zeros(16, np.int32),
            "handle": np.zeros(rows, np.uint64),
            "epoch": np.zeros(rows, np.uint32),
            "flags": np.zeros(rows, np.uint32),
            "uniform": np.zeros(rows, np.float64),
            **{name: np.zeros(rows, np.int32) for name in per_row},
            **{name: np.zeros(rows + 1, np.int32) for name in ("cu_q", "sample_indptr")},
            **{n: np.zeros(tokens, np.int32) for n in ("input_ids", "gather_slot", "positions")},
            "slot_mapping": np.zeros(tokens, np.int64),
            "table_delta": np.zeros((self.min_table_deltas, 3), np.int32),
            "copy_ops": np.zeros((self.copy_limit, 5), np.int32),
            "tokens": np.zeros((rows, 1), np.int32),
            "result": np.zeros((rows, 4), np.int32),
        }


ALL_TOKENS = (1 << 31) - 1


@dataclass(frozen=True, kw_only=True)
class Ask:
    """What a caller asks for."""

    prompt: tuple[int, ...]
    scope: int = 0
    max_output: int = 4
    end_ids: frozenset[int] = frozenset()
    stop_ids: frozenset[int] = frozenset()
    seed: int = 0
    output_index: int = 0
    priority: int = 50
    leader: int = 0
    session: int = 0
    retention_priority: int = 50
    retention_us: int = 0
    num_reusable: int = ALL_TOKENS

    def submit_to(self, core: _native.EngineCore, *, arrival_ns: int = 0) -> int:
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
            session=self.session,
            retention_priority=self.retention_priority,
            retention_us=self.retention_us,
            arrival_ns=arrival_ns,
            num_reusable=self.num_reusable,
        )

    def output_limit(self, shape: CoreShape) -> int:
        return min(self.max_output, shape.max_context_tokens - len(self.prompt))

    def blocks_needed(self, shape: CoreShape) -> int:
        """Blocks at its end; the last token is never computed."""
        return -(-(len(self.prompt) + self.output_limit(shape) - 1) // shape.block_tokens)


@dataclass(kw_only=True)
class ModelRequest:
    """What must be true of a request by the rules alone."""

    ask: Ask
    handle: int
    arrival: int
    outputs: list[int] = field(default_factory=list)
    """Those that commits have told."""
    history: History
    """What the device knows in this epoch: more than the outputs, when steps are in flight."""
    uniforms: list[float] = field(default_factory=list)
    """The draw behind each output."""
    finish: int = _native.FINISH_NONE
    epoch: int = 1
    """Grows with each pause."""
    held: bool = False
    """Whether its caller wants it to rest."""
    sits_out: bool = False
    """Whether it gets no rows for a while."""
    late: bool = False
    """Whether a row in flight will bring no token."""
    free: bool = False
    """Whether its leader has rested meanwhile, so that it waits for it no longer."""
    running: bool = False
    """Whether it has had a row in this epoch, and has not ended."""
    computed: int = 0
    """Tokens whose KV is there once the planned steps are executed."""
    reached: int = 0
    """Tokens whose KV was there before it last lost its blocks."""
    num_known: int = 0
    """Tokens, those included that planned steps will bring."""
    reused: int | None = None
    """Prompt tokens taken from the cache at its first row; None before."""
    sampled_in_epoch: bool = False
    """Whether a planned step has brought a token since it got its slot."""
    num_rows: int = 0
    num_pauses: int = 0
    recomputed: int = 0
    """Tokens computed again after pauses."""

    @property
    def tokens(self) -> list[int]:
        return [*self.ask.prompt, *self.outputs]

    @property
    def max_reused(self) -> int:
        """Leading tokens that it may take from the cache: others' or its own, all but one."""
        return min(len(self.tokens) - 1, max(self.ask.num_reusable, self.reached))

    @property
    def started(self) -> bool:
        return self.reused is not None

    @property
    def order(self) -> tuple[int, int]:
        """Less is earlier."""
        return -self.ask.priority, self.arrival

    def num_expected_outputs(self) -> int:
        """Outputs, those included that planned steps will bring."""
        return max(self.num_known - len(self.ask.prompt), len(self.outputs))

    def may_sample(self, shape: CoreShape) -> bool:
        """Whether its length lets it go on when all planned steps have come in."""
        return self.num_expected_outputs() < self.ask.output_limit(shape)

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
