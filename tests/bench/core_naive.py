"""The core's policy in plain Python: lists and dicts, a straightforward program, no tricks.

First come first served, everything reserved that a request can need, prompts in chunks beside those
that decode, whole blocks shared through a dictionary. It fills the same arrays as the core does, so
that an executor could run on them.
"""

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

BlockKey = tuple[int, tuple[int, ...]]
"""A parent block and the tokens behind it."""


@dataclass
class Request:
    """One output that is being made."""

    tokens: list[int]
    num_prompt: int
    max_output: int
    end_ids: frozenset[int]
    needed_blocks: int
    slot: int = -1
    blocks: list[int] = field(default_factory=list)
    num_computed: int = 0
    num_published: int = 0
    num_sent: int = 0


@dataclass
class Plan:
    """A step's arrays."""

    rows: list[Request] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)
    q_lens: list[int] = field(default_factory=list)
    kv_lens: list[int] = field(default_factory=list)
    input_ids: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    slot_mapping: list[int] = field(default_factory=list)
    table_deltas: list[tuple[int, int, int]] = field(default_factory=list)
    samples: list[int] = field(default_factory=list)


class NaiveScheduler:
    """Plans steps and takes their tokens."""

    def __init__(
        self, *, num_blocks: int, block_tokens: int, max_rows: int, max_step_tokens: int
    ) -> None:
        self._block_tokens = block_tokens
        self._max_step_tokens = max_step_tokens
        self._free_blocks = list(range(num_blocks - 1, 0, -1))
        self._free_slots = list(range(max_rows))
        self._num_references = [0] * num_blocks
        self._reserved = 0
        self._cached: dict[BlockKey, int] = {}
        self._keys: dict[int, BlockKey] = {}
        self._unused: dict[int, None] = {}
        """Cached blocks that nobody uses, the one used longest ago first."""
        self._waiting: deque[Request] = deque()
        self._running: list[Request] = []

    def submit(self, prompt: Sequence[int], max_output: int, end_ids: Sequence[int]) -> None:
        """Queues a request."""
        needed = -(-(len(prompt) + max_output - 1) // self._block_tokens)
        self._waiting.append(
            Request(list(prompt), len(prompt), max_output, frozenset(end_ids), needed)
        )

    @property
    def num_running(self) -> int:
        """Requests that were admitted."""
        return len(self._running)

    def plan(self) -> Plan:
        """Returns the next step."""
        plan = Plan()
        left = self._max_step_tokens
        for decodes in (True, False):
            for request in self._running:
                if (len(request.tokens) > request.num_prompt) == decodes and left > 0:
                    left -= self._add_row(plan, request, left)
        while self._waiting and left > 0 and self._free_slots and self._admit(self._waiting[0]):
            left -= self._add_row(plan, self._running[-1], left)
        return plan

    def commit(self, plan: Plan, tokens: Sequence[int]) -> None:
        """Takes one token for each row that samples."""
        ended = []
        for request, num_new, token in zip(plan.rows, plan.q_lens, tokens, strict=True):
            request.num_computed += num_new
            self._publish(request)
            if request.num_computed < len(request.tokens):
                continue
            request.tokens.append(token)
            num_output = len(request.tokens) - request.num_prompt
            if token in request.end_ids or num_output >= request.max_output:
                ended.append(request)
        for request in ended:
            self._running.remove(request)
            self._release(request)

    def _admit(self, request: Request) -> bool:
        hits = self._match(request)
        live = sum(self._num_references[block] > 0 for block in hits)
        available = len(self._free_blocks) + len(self._unused) - self._reserved
        if request.needed_blocks - live > available:
            return False
        self._waiting.popleft()
        for block in hits:
            self._unused.pop(block, None)
            self._num_references[block] += 1
        request.blocks = hits
        request.num_published = len(hits)
        request.num_computed = len(hits) * self._block_tokens
        request.slot = self._free_slots.pop()
        self._reserved += request.needed_blocks - len(hits)
        self._running.append(request)
        return True

    def _match(self, request: Request) -> list[int]:
        hits: list[int] = []
        parent = 0
        for start in range(0, request.num_prompt - self._block_tokens, self._block_tokens):
            key = (parent, tuple(request.tokens[start : start + self._block_tokens]))
            if (block := self._cached.get(key)) is None:
                break
            hits.append(block)
            parent = block
        return hits

    def _add_row(self, plan: Plan, request: Request, left: int) -> int:
        begin = request.num_computed
        end = min(len(request.tokens), begin + left)
        if end < len(request.tokens):
            end = end // self._block_tokens * self._block_tokens
        if end <= begin:
            return 0
        while len(request.blocks) * self._block_tokens < end:
            request.blocks.append(self._take_block())
        plan.rows.append(request)
        plan.slots.append(request.slot)
        plan.q_lens.append(end - begin)
        plan.kv_lens.append(end)
        for position in range(begin, end):
            block, offset = divmod(position, self._block_tokens)
            plan.input_ids.append(request.tokens[position])
            plan.positions.append(position)
            plan.slot_mapping.append(request.blocks[block] * self._block_tokens + offset)
        for index in range(request.num_sent, len(request.blocks)):
            plan.table_deltas.append((request.slot, index, request.blocks[index]))
        request.num_sent = len(request.blocks)
        if end == len(request.tokens):
            plan.samples.append(len(plan.input_ids) - 1)
        return end - begin

    def _take_block(self) -> int:
        if self._free_blocks:
            block = self._free_blocks.pop()
        else:
            block = next(iter(self._unused))
            del self._unused[block]
            del self._cached[self._keys.pop(block)]
        self._num_references[block] = 1
        self._reserved -= 1
        return block

    def _publish(self, request: Request) -> None:
        while (request.num_published + 1) * self._block_tokens <= request.num_computed:
            start = request.num_published * self._block_tokens
            parent = request.blocks[request.num_published - 1] if start else 0
            key = (parent, tuple(request.tokens[start : start + self._block_tokens]))
            block = request.blocks[request.num_published]
            if key not in self._cached:
                self._cached[key] = block
                self._keys[block] = key
            request.num_published += 1

    def _release(self, request: Request) -> None:
        self._reserved -= request.needed_blocks - len(request.blocks)
        self._free_slots.append(request.slot)
        for block in reversed(request.blocks):
            self._num_references[block] -= 1
            if self._num_references[block] == 0:
                if block in self._keys:
                    self._unused[block] = None
                else:
                    self._free_blocks.append(block)


def steady_decode_us(*, num_rows: int, context_tokens: int, block_tokens: int) -> float:
    """Returns CPU microseconds of plan and commit in steady decode, the median over windows.

    A window has as many steps as a block has tokens.
    """
    num_windows, warm_up = 8, 2 * block_tokens
    max_output = warm_up + (num_windows + 1) * block_tokens + 4 * num_rows
    blocks_each = -(-(context_tokens + max_output) // block_tokens)
    scheduler = NaiveScheduler(
        num_blocks=1 + num_rows * blocks_each,
        block_tokens=block_tokens,
        max_rows=num_rows,
        max_step_tokens=8192,
    )
    for row in range(num_rows):
        scheduler.submit([row, *range(1, context_tokens)], max_output, [2])
    plan = Plan()
    while len(plan.samples) < num_rows:
        plan = scheduler.plan()
        scheduler.commit(plan, [7] * len(plan.rows))
    windows = []
    for _ in range(num_windows):
        begin_s = time.thread_time()
        for _ in range(block_tokens):
            plan = scheduler.plan()
            scheduler.commit(plan, [7] * len(plan.rows))
        windows.append((time.thread_time() - begin_s) * 1e6 / block_tokens)
        assert len(plan.rows) == scheduler.num_running == num_rows, "the decode is not steady"
    return sorted(windows)[num_windows // 2]
