"""A native core, a naive model of it and a ghost executor, moved together.

After each call, `check` compares the core with what plain rules say. The checks are named after the
invariants that they prove.
"""

from collections.abc import Callable, Sequence

import numpy as np

from antiphon_engine import _native
from support.core_state import CoreState
from support.core_values import (
    Ask,
    Buffers,
    CoreShape,
    ModelRequest,
    make_buffers,
    planned_rows,
)
from support.ghost_kv import GhostKv

Sampler = Callable[[ModelRequest, float], int]
"""Draws a request's next token, given the row's uniform number."""


class CoreModel:
    """Drives a core with requests; a step at a time, or to the end."""

    def __init__(self, shape: CoreShape) -> None:
        self.shape = shape
        self.core = shape.make_core()
        self.requests: dict[int, ModelRequest] = {}
        self.ended: dict[int, ModelRequest] = {}
        self._ghost = GhostKv(shape.block_tokens)
        self._buffers = [
            make_buffers(shape.max_rows, shape.max_step_tokens, shape.min_table_deltas)
            for _ in range(2)
        ]
        for index, buffers in enumerate(self._buffers):
            self.core.register_buffers(index, **buffers)
        self._in_flight: tuple[int, Buffers] | None = None
        self._slot_owners: dict[int, int] = {}
        self._num_plans = 0
        self._num_submitted = 0

    @property
    def in_flight(self) -> bool:
        return self._in_flight is not None

    def scope(self, tenant: str) -> int:
        return self.core.intern_scope(tenant=tenant, cache_scope="", adapter="", weights="w")

    def submit(self, ask: Ask) -> int:
        handle = ask.submit_to(self.core)
        assert handle not in self.requests, "I22: a handle names two requests"
        assert handle not in self.ended, "I22: a handle names two requests"
        self._num_submitted += 1
        self.requests[handle] = ModelRequest(ask=ask, handle=handle, arrival=self._num_submitted)
        return handle

    def abort(self, handle: int) -> None:
        assert self.core.abort(handle) == (handle in self.requests), "I24: an end is told wrongly"
        self._end(handle)
        assert not self.core.abort(handle), "I5: a request ended twice"

    def finish(self, handle: int, keep: int) -> None:
        assert self.core.finish(handle, keep) == (handle in self.requests), "I24"
        self._end(handle)
        assert not self.core.finish(handle, keep), "I5: a request ended twice"

    def run(self, sample: Sampler, *, max_steps: int = 2000) -> None:
        """Steps until no request is left."""
        for _ in range(max_steps):
            if not self.requests:
                return
            self.plan()
            self.commit(sample)
        raise AssertionError("I17: requests do not come to an end")

    def plan(self) -> bool:
        """Plans a step and executes it. False if nothing could run."""
        index = self._num_plans % 2
        queue = self._queue()
        step_id = self.core.plan(index)
        if step_id == 0:
            assert not self.requests, "I17: requests are there and nothing runs"
            return False
        self._num_plans += 1
        buffers = self._buffers[index]
        self._in_flight = (step_id, buffers)
        self._check_plan(buffers)
        state = CoreState.of(self.core)
        state.check_unshared(self._ghost.execute(buffers, self.requests))
        self._check_admissions(buffers, queue, state)
        return True

    def commit(self, sample: Sampler) -> None:
        assert self._in_flight is not None
        step_id, buffers = self._in_flight
        buffers["tokens"][:] = -1
        buffers["num_tokens"][:] = 0
        for row, handle in planned_rows(buffers):
            if buffers["flags"][row] & _native.FLAG_SAMPLE:
                request = self.requests.get(handle) or self.ended[handle]
                buffers["tokens"][row] = sample(request, float(buffers["uniform"][row]))
                buffers["num_tokens"][row] = 1
        self.core.commit(step_id)
        self._in_flight = None
        for row, handle in planned_rows(buffers):
            self._take_result(buffers, row, handle)

    def check(self) -> None:
        """Checks the whole state, from inside and from outside."""
        self.core.check_invariants()
        state = CoreState.of(self.core)
        state.check_blocks(self.shape)
        state.check_index(self._ghost)
        state.check_requests(self.requests, in_flight=self.in_flight)
        stats = self.core.stats()
        assert stats["num_blocks_free"] == len(state.clean)
        assert stats["num_blocks_cached"] == len(state.cached)
        assert stats["num_blocks_used"] == len(state.references)
        assert stats["num_running"] + stats["num_waiting"] == len(self.requests)

    def check_match(self, scope: int, tokens: Sequence[int]) -> None:
        width = self.shape.block_tokens
        blocks = CoreState.of(self.core).longest_match(self._ghost, (scope, tokens, width))
        found = self.core.match_prefix(scope, np.array(tokens, np.int32))
        assert found == len(blocks) * width, "I8: not the longest published prefix"

    # A plan.

    def _check_plan(self, buffers: Buffers) -> None:
        header, rows = buffers["header"], planned_rows(buffers)
        handles = [handle for _, handle in rows]
        q_lens = [int(buffers["q_len"][row]) for row, _ in rows]
        edges = [sum(q_lens[:i]) for i in range(len(rows) + 1)]
        assert 1 <= len(rows) <= self.shape.max_running, "I13: too many rows"
        assert sum(q_lens) <= self.shape.max_step_tokens, "I13: too many tokens"
        assert header[_native.HEADER_NUM_TOKENS] == sum(q_lens)
        assert len(set(handles)) == len(rows), "I13: a request is there twice"
        assert set(handles) <= set(self.requests), "I13: an ended request runs"
        assert list(buffers["cu_q"][: len(rows) + 1]) == edges
        decoding = [r.handle for r in self.requests.values() if r.outputs]
        assert sorted(handles[: len(decoding)]) == sorted(decoding), "a decoding request waits"
        assert header[_native.HEADER_NUM_DECODE_ROWS] == len(decoding)
        assert header[_native.HEADER_NUM_PREFILL_ROWS] == len(rows) - len(decoding)
        firsts = [row for row, _ in rows if buffers["flags"][row] & _native.FLAG_FIRST]
        num_inits = header[_native.HEADER_NUM_SLOT_INITS]
        assert list(buffers["slot_init"][:num_inits]) == firsts
        for row, handle in rows:
            if row in firsts:
                self._check_first_row(buffers, row, self.requests[handle])
            self._check_row(buffers, row, self.requests[handle])

    def _check_first_row(self, buffers: Buffers, row: int, request: ModelRequest) -> None:
        reused, slot = int(buffers["reused_tokens"][row]), int(buffers["slot"][row])
        assert not request.started, "a request starts twice"
        assert reused % self.shape.block_tokens == 0, "I8: reuse is not of whole blocks"
        assert reused < len(request.ask.prompt), "I8: no prompt token is left to compute"
        assert slot not in self._slot_owners, "a slot has two owners"
        self._slot_owners[slot] = request.handle
        request.reused = request.computed = reused

    def _check_row(self, buffers: Buffers, row: int, request: ModelRequest) -> None:
        flags, q_len = int(buffers["flags"][row]), int(buffers["q_len"][row])
        first, last = int(buffers["cu_q"][row]), int(buffers["cu_q"][row + 1])
        start, end = request.computed, request.computed + q_len
        samples = end == len(request.tokens)
        assert q_len >= 1, "I14: a row without tokens"
        assert end <= len(request.tokens), "I21: a row computes what is not known"
        assert samples or end % self.shape.block_tokens == 0, "I14: a chunk ends inside a block"
        assert q_len <= (self.shape.chunk_tokens or q_len), "I14: a chunk is too long"
        assert (buffers["ctx_len"][row], buffers["kv_len"][row]) == (start, end)
        assert bool(flags & _native.FLAG_SAMPLE) == samples
        assert bool(flags & _native.FLAG_PREFILL) == (not request.outputs)
        assert list(buffers["input_ids"][first:last]) == request.tokens[start:end]
        assert list(buffers["positions"][first:last]) == list(range(start, end))
        assert set(buffers["gather_slot"][first:last]) == {-1}
        begin, stop = buffers["sample_indptr"][row : row + 2]
        assert list(buffers["sample_rows"][begin:stop]) == [last - 1] * samples
        assert buffers["output_position"][row] == len(request.outputs)
        assert self._slot_owners[int(buffers["slot"][row])] == request.handle
        request.computed = end
        request.num_steps += 1
        if samples:
            request.uniforms.append(float(buffers["uniform"][row]))

    def _queue(self) -> list[ModelRequest]:
        """Those that may be admitted now, in their order."""
        waiting = [r for r in self.requests.values() if not r.started and self._led(r)]
        return sorted(waiting, key=lambda r: (-r.ask.priority, r.arrival))

    def _led(self, request: ModelRequest) -> bool:
        leader = self.requests.get(request.ask.leader)
        return leader is None or bool(leader.outputs)

    def _check_admissions(
        self, buffers: Buffers, queue: list[ModelRequest], state: CoreState
    ) -> None:
        admitted = [request for request in queue if request.started]
        assert admitted == queue[: len(admitted)], "I18: a request was passed over"
        assert len(admitted) == buffers["header"][_native.HEADER_NUM_SLOT_INITS]
        if len(admitted) == len(queue):
            return
        num_running = sum(1 for r in self.requests.values() if r.started)
        header, shape = buffers["header"], self.shape
        num_left = shape.max_step_tokens - header[_native.HEADER_NUM_TOKENS]
        num_deltas_left = shape.min_table_deltas - header[_native.HEADER_NUM_TABLE_DELTAS]
        assert (
            num_running == shape.max_running
            or num_left < shape.block_tokens
            or num_deltas_left < shape.context_blocks
            or not state.fits(self._ghost, queue[len(admitted)], shape)
        ), "I17: the first in the queue could run and does not"

    # A commit.

    def _take_result(self, buffers: Buffers, row: int, handle: int) -> None:
        result = [int(value) for value in buffers["result"][row]]
        request = self.requests.get(handle)
        if request is None:
            assert result == [0, 0, 0, 0], "I22: a late result changes something"
            del self._slot_owners[int(buffers["slot"][row])]
            return
        if not buffers["flags"][row] & _native.FLAG_SAMPLE:
            assert result == [0, 0, 0, request.num_steps]
            return
        request.outputs.append(int(buffers["tokens"][row, 0]))
        request.finish = request.finish_reason(self.shape)
        assert result == [1, request.finish, len(request.outputs), request.num_steps]
        if request.finish != _native.FINISH_NONE:
            assert request.computed == len(request.tokens) - 1, "I21: KV at the end"
            self._end(handle)

    def _end(self, handle: int) -> None:
        request = self.requests.pop(handle, None)
        if request is None:
            return
        self.ended[handle] = request
        rows = planned_rows(self._in_flight[1]) if self._in_flight else []
        if any(planned == handle for _, planned in rows):
            return  # its slot is held until the commit
        owned = [slot for slot, owner in self._slot_owners.items() if owner == handle]
        for slot in owned:
            del self._slot_owners[slot]
