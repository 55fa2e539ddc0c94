"""Who may run, who waits, and who had to make room: what each plan must keep to."""

from collections.abc import Mapping
from dataclasses import dataclass

from antiphon_engine import _native
from support.core_state import CoreState
from support.core_steps import PlannedStep
from support.core_values import CoreShape, ModelRequest
from support.ghost_kv import GhostKv

Requests = Mapping[int, ModelRequest]
RUNNING = ("onload", "prefill", "decode")


@dataclass(frozen=True, kw_only=True)
class Planning:
    """A plan and what surrounded it."""

    step: PlannedStep | None
    before: CoreState
    after: CoreState
    in_flight: bool
    """Whether steps before it were not committed."""
    was_running: frozenset[int]
    paused: frozenset[int]
    """Handles that it paused."""
    counters: dict[str, int]
    """What the core's stats grew by."""


@dataclass
class _Wait:
    """A request that waits while others behind it are admitted."""

    num_bypasses: int = 0
    first_bypass: int = 0


class Fairness:
    """Checks each plan, and counts over all of them how often each request was passed over."""

    def __init__(self, shape: CoreShape, ghost: GhostKv) -> None:
        self._shape = shape
        self._ghost = ghost
        self._waits: dict[int, _Wait] = {}
        self._num_plans = 0

    def check(self, planning: Planning, requests: Requests) -> None:
        self._num_plans += 1
        if planning.step is None:
            rest = all(request.held for request in requests.values())
            sits_out = any(request.sits_out for request in requests.values())
            assert planning.in_flight or rest or sits_out, (
                "I17: requests are there and nothing runs"
            )
        self._check_pauses(planning, requests)
        self._check_decodes(planning, requests)
        admitted = self._admitted(planning)
        self._check_order(planning, admitted, requests)
        if self._shape.capacity_policy == "static_batch":
            self._check_batch(planning, admitted, requests)
        if self._shape.capacity_policy != "max_utilization":
            planning.after.check_promise()

    def check_exactly(self, planning: Planning, requests: Requests) -> None:
        """First come, first served, under the plainest settings: nothing is left to choice."""
        admitted = self._admitted(planning)
        queue = sorted(
            (r for r in requests.values() if not r.held and r.handle not in planning.was_running),
            key=lambda request: request.order,
        )
        queue = [request for request in queue if self._led(request, requests)]
        first = [request.handle for request in queue[: len(admitted)]]
        assert set(first) == admitted, "I18: a request was passed over"
        if len(admitted) == len(queue) or planning.step is None:
            return
        header, shape = planning.step.buffers["header"], self._shape
        num_left = shape.max_step_tokens - header[_native.HEADER_NUM_TOKENS]
        num_deltas_left = shape.min_table_deltas - header[_native.HEADER_NUM_TABLE_DELTAS]
        assert (
            len(planning.was_running) + len(admitted) == shape.max_running
            or num_left < shape.block_tokens
            or num_deltas_left < shape.context_blocks
            or not self._fits(planning.after, queue[len(admitted)])
        ), "I17: the first in the queue could run and does not"

    def forget(self, handle: int) -> None:
        self._waits.pop(handle, None)

    def _admitted(self, planning: Planning) -> set[int]:
        running = planning.after.in_state(*RUNNING)
        return running - planning.was_running

    def _check_pauses(self, planning: Planning, requests: Requests) -> None:
        shape, paused = self._shape, planning.paused
        assert planning.counters["num_preemptions_total"] == len(paused), "a pause is not counted"
        if shape.capacity_policy != "max_utilization" and not shape.pause_every:
            assert not paused, "I15: a request was paused"
        for handle in paused:
            victim = planning.before.requests[handle]
            assert victim.num_computed == victim.num_settled, "I16: a fenced request was paused"
        if shape.pause_every or not paused:
            return
        assert any(
            requests[handle].order <= min(requests[victim].order for victim in paused)
            for handle in planning.was_running
        ), "I16: a request was paused for one behind it"
        kept = planning.was_running - paused
        for handle in kept:
            dumped = planning.before.requests[handle]
            fenced = dumped.num_computed != dumped.num_settled
            behind = all(requests[handle].order > requests[victim].order for victim in paused)
            assert fenced or not behind, "I16: not the latest that can be was paused"
        assert not self._admitted(planning), "I16: one is admitted while another makes room"
        self._check_needed(planning)

    def _check_needed(self, planning: Planning) -> None:
        """Nobody is paused where what is running fits."""
        before, width = planning.before, self._shape.block_tokens
        needed = 0
        for handle in planning.was_running:
            request = before.requests[handle]
            num_tokens = request.num_known + 1 + self._shape.run_ahead
            needed += max(0, -(-num_tokens // width) - len(request.blocks))
        assert needed > before.num_available, "I16: a request was paused and all would have fit"

    def _check_decodes(self, planning: Planning, requests: Requests) -> None:
        """Under a promise of memory, whoever generates is in every step until its last token."""
        if self._shape.capacity_policy == "max_utilization" or self._shape.pause_every:
            return
        rows = {row.handle for row in planning.step.rows} if planning.step else set()
        for handle in planning.was_running - planning.paused - rows:
            request = requests[handle]
            generates = request.sampled_in_epoch and request.may_sample(self._shape)
            rests = request.held or request.sits_out
            assert rests or not generates, "I17: a request that generates waits"

    def _check_order(self, planning: Planning, admitted: set[int], requests: Requests) -> None:
        """I18: a request is passed over by few, and not for long. Paused ones keep their place."""
        for handle in admitted:
            assert not requests[handle].held, "I13: a request that is held is admitted"
            self.forget(handle)
            assert self._led(requests[handle], requests), "a follower starts before its leader"
        for request in requests.values():
            if request.held or request.handle in planning.was_running | admitted:
                continue
            if request.handle in planning.before.in_state("wait_leader"):
                assert request.ask.leader in requests, "I17: its leader is gone and it waits on"
                continue
            if self._is_deferred(planning, request, requests):
                continue
            num_passing = sum(1 for handle in admitted if requests[handle].order > request.order)
            if num_passing:
                self._note_bypasses(request.handle, num_passing)

    def _note_bypasses(self, handle: int, num_passing: int) -> None:
        wait = self._waits.setdefault(handle, _Wait(first_bypass=self._num_plans))
        wait.num_bypasses += num_passing
        num_steps = self._num_plans - wait.first_bypass
        assert wait.num_bypasses <= self._shape.bypass_requests, "I18: passed over by too many"
        assert num_steps <= self._shape.bypass_steps, "I18: passed over for too long"

    def _is_deferred(self, planning: Planning, request: ModelRequest, requests: Requests) -> bool:
        """Whether it may wait for a block that another computes now."""
        if not self._shape.prefix_deferral or planning.step is None:
            return False
        width = self._shape.block_tokens
        chains = set(request.history.chains[width - 1 :: width])
        for row in planning.step.rows:
            history = requests[row.handle].history.chains[: row.end]
            if row.flags & _native.FLAG_PREFILL and chains & set(history[width - 1 :: width]):
                return True
        return False

    def _check_batch(self, planning: Planning, admitted: set[int], requests: Requests) -> None:
        firsts = [handle for handle in admitted if not requests[handle].num_pauses]
        generating = planning.before.in_state("decode") - planning.paused
        assert not firsts or not generating, "a batch is joined while it generates"

    def _led(self, request: ModelRequest, requests: Requests) -> bool:
        leader = requests.get(request.ask.leader)
        return leader is None or request.free or bool(leader.outputs)

    def _fits(self, state: CoreState, request: ModelRequest) -> bool:
        """Whether GUARANTEED_NO_EVICT may admit the request: the rule in its plainest form."""
        width = self._shape.block_tokens
        limit = (len(request.ask.prompt) - 1) // width
        hits = state.match(self._ghost, request.history).path[:limit]
        num_live = sum(1 for node in hits if state.references.get(node.block))
        needed = request.ask.blocks_needed(self._shape) - num_live
        return needed <= state.num_available - state.num_reserved
