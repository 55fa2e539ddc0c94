"""A native core with a ghost executor, moved together: every row and every read is checked."""

import random
from collections import deque
from collections.abc import Mapping

from antiphon_engine import _native
from support.core_rows import read_step
from support.core_state import CoreState
from support.core_steps import PlannedRow, PlannedStep, Sampler
from support.core_times import TimesModel
from support.core_values import Ask, CoreShape, History, ModelRequest
from support.ghost_kv import GhostKv


class CoreDriver:
    """Drives a core with requests. Steps are planned, executed and committed apart, in order."""

    def __init__(self, shape: CoreShape, *, seed: int = 0) -> None:
        self.shape = shape
        self.core = shape.make_core()
        self.requests: dict[int, ModelRequest] = {}
        self.ended: dict[int, ModelRequest] = {}
        self.in_flight: deque[PlannedStep] = deque()
        self.now_us = 0
        self.times = TimesModel(self.core)
        self.ghost = GhostKv(shape, random.Random(seed))
        self._buffers = [shape.make_buffers() for _ in range(shape.num_buffer_sets)]
        for index, buffers in enumerate(self._buffers):
            self.core.register_buffers(index, **buffers)
        self._next_set = 0
        self._num_submitted = 0
        self._num_pauses = 0
        self.num_rests = 0
        """How often a request that was held gave up its blocks."""

    @property
    def may_plan(self) -> bool:
        return len(self.in_flight) <= self.shape.run_ahead

    @property
    def all_executed(self) -> bool:
        return all(step.executed for step in self.in_flight)

    def scope(self, tenant: str) -> int:
        return self.core.intern_scope(tenant=tenant, cache_scope="", adapter="", weights="w")

    def state(self) -> CoreState:
        return CoreState.of(self.core, self.shape.block_tokens)

    def submit(self, ask: Ask) -> int:
        arrival_ns = self.now_us * 1000
        handle = ask.submit_to(self.core, arrival_ns=arrival_ns)
        assert handle not in {0, *self.requests, *self.ended}, "I22: a handle names two requests"
        self._num_submitted += 1
        self.requests[handle] = ModelRequest(
            ask=ask,
            handle=handle,
            arrival=self._num_submitted,
            history=History(ask.scope, ask.prompt),
            free=self._rests(ask.leader),
        )
        self.times.submit(handle, arrival_ns)
        return handle

    def abort(self, handle: int) -> None:
        assert self.core.abort(handle) == (handle in self.requests), "I24: an end is told wrongly"
        self._end(handle)
        assert not self.core.abort(handle), "I5: a request ended twice"

    def finish(self, handle: int, keep: int) -> None:
        assert self.core.finish(handle, keep) == (handle in self.requests), "I24"
        self._end(handle)
        assert not self.core.finish(handle, keep), "I5: a request ended twice"

    def hold(self, handle: int) -> None:
        for _ in range(2):
            assert self.core.hold(handle) == (handle in self.requests), (
                "I24: an end is told wrongly"
            )
        if handle not in self.requests:
            return
        self.requests[handle].held = True
        for request in self.requests.values():
            request.free |= request.ask.leader == handle
        self._find_rested()

    def release(self, handle: int) -> None:
        for _ in range(2):
            assert self.core.release(handle) == (handle in self.requests), "I24"
        request = self.requests.get(handle)
        if request is not None and request.held:
            request.held = False
            request.free = self._rests(request.ask.leader)

    def sit_out(self, handle: int) -> None:
        for _ in range(2):
            assert self.core.sit_out(handle) == (handle in self.requests), "I24"
        if handle in self.requests:
            self.requests[handle].sits_out = True

    def rejoin(self, handle: int) -> None:
        for _ in range(2):
            assert self.core.rejoin(handle) == (handle in self.requests), "I24"
        if handle in self.requests:
            self.requests[handle].sits_out = False

    def withhold(self, handle: int) -> bool:
        """Has a request's one row in flight bring no token; False where that can't be."""
        flights = [
            (step, row)
            for step in self.in_flight
            for row in step.rows
            if row.handle == handle and row.epoch == self.requests[handle].epoch
        ]
        if len(flights) != 1 or flights[0][0].executed or not flights[0][1].samples:
            return False
        ((step, row),) = flights
        step.late.add(row.index)
        self.requests[handle].late = True
        self.sit_out(handle)
        return True

    @property
    def sitting_out(self) -> list[int]:
        """Those that may rejoin: what they were to bring is known to come or not to come."""
        return [h for h, request in self.requests.items() if request.sits_out and not request.late]

    @property
    def held(self) -> list[int]:
        return [handle for handle, request in self.requests.items() if request.held]

    def run(self, sample: Sampler, *, max_steps: int = 4000) -> None:
        """Releases all and steps until no request is left and no step is in flight."""
        self.drain(sample)
        for handle in self.held:
            self.release(handle)
        for handle in self.sitting_out:
            self.rejoin(handle)
        for _ in range(max_steps):
            if not self.requests:
                return self.drain(sample)
            self.step(sample)
        raise AssertionError(f"I17: requests do not come to an end: {self.core.dump_state()}")

    def step(self, sample: Sampler) -> bool:
        """Plans a step; retires the oldest ones until another may be planned.

        Retires one at least where nothing could be planned. False if so.
        """
        planned = self.may_plan and self.plan()
        if not planned and self.in_flight:
            self._retire(sample)
        while not self.may_plan:
            self._retire(sample)
        return planned

    def drain(self, sample: Sampler) -> None:
        """Executes and commits what is in flight."""
        while self.in_flight:
            self._retire(sample)

    def plan(self) -> bool:
        """Plans a step. False if nothing could run."""
        assert self.may_plan
        step_id = self.core.plan(self._next_set, self.times.tell(self.now_us * 1000))
        self._find_paused()
        if step_id == 0:
            return False
        step = read_step(step_id, self._buffers[self._next_set], self.requests, self.shape)
        self.times.plan(step)
        self.in_flight.append(step)
        self._next_set = (self._next_set + 1) % self.shape.num_buffer_sets
        return True

    def execute(self, sample: Sampler) -> None:
        """Executes the oldest step that was not, if there is one."""
        for step in self.in_flight:
            if not step.executed:
                return self.ghost.execute(step, sample)

    def commit(self) -> None:
        step = self.in_flight[0]
        assert step.executed
        self.core.commit(step.step_id, self.times.tell(self.now_us * 1000 + 500))
        self.in_flight.popleft()
        for row in step.rows:
            self._take_result(step, row)
        if self.held:
            self._find_rested()

    def outcomes(self, handles: list[int]) -> list[tuple[list[int], int]]:
        """Output and finish reason of requests that have ended."""
        return [(self.ended[handle].outputs, self.ended[handle].finish) for handle in handles]

    def stats(self) -> Mapping[str, int]:
        return self.core.stats()

    def _retire(self, sample: Sampler) -> None:
        if not self.in_flight[0].executed:
            self.execute(sample)
        self.commit()

    def _rests(self, handle: int) -> bool:
        return handle in self.requests and self.requests[handle].held

    def _find_rested(self) -> None:
        """Notes who has given up his blocks because he is held."""
        for request in self._find_suspended():
            assert request.held, "a request lost its blocks and was not paused"
            self._note_rest(request, held=True)
            self.num_rests += 1

    def _find_paused(self) -> None:
        """Notes who was paused by the plan."""
        num_pauses = self.core.stats()["num_preemptions_total"]
        if num_pauses == self._num_pauses:
            return
        self._num_pauses = num_pauses
        for request in self._find_suspended():
            request.num_pauses += 1
            self._note_rest(request, held=False)

    def _note_rest(self, request: ModelRequest, *, held: bool) -> None:
        if request.started:
            self.times.suspend(request.handle, num_computed=request.computed, held=held)

    def _find_suspended(self) -> list[ModelRequest]:
        """Notes who has lost his blocks, and returns them: who runs again has another epoch."""
        suspended = []
        for dumped in self.state().requests.values():
            request = self.requests.get(dumped.handle)
            if request is not None and dumped.epoch != request.epoch:
                request.running = False
                request.epoch = dumped.epoch
                suspended.append(request)
        return suspended

    def _take_result(self, step: PlannedStep, row: PlannedRow) -> None:
        result = [int(value) for value in step.buffers["result"][row.index]]
        request = self.requests.get(row.handle)
        if request is None or row.epoch != request.epoch:
            assert result == [0, 0, 0, 0], "I22: a late result changes something"
            return
        assert 1 <= result[3] <= request.num_rows, "steps are counted wrongly"
        if not self.shape.run_ahead:
            assert result[3] == request.num_rows, "steps are counted wrongly"
        self.times.commit(step, row)
        if not row.samples or row.index in step.late:
            assert result[:3] == [0, 0, 0]
            if row.samples:
                request.late = False
                request.computed -= 1
                request.num_known -= 1
            return
        request.outputs.append(int(step.buffers["tokens"][row.index, 0]))
        request.uniforms.append(float(step.buffers["uniform"][row.index]))
        request.finish = request.finish_reason(self.shape)
        assert result[:3] == [1, request.finish, len(request.outputs)], "I19: a result is wrong"
        if request.finish != _native.FINISH_NONE:
            assert request.computed >= len(request.tokens) - 1, "I21: KV at the end"
            self._end(row.handle)

    def _end(self, handle: int) -> None:
        request = self.requests.pop(handle, None)
        if request is not None:
            request.running = False
            self.ended[handle] = request
            self.times.end(handle)
