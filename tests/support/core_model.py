"""A driven core whose whole state is checked from outside after each call.

The checks are named after the invariants that they prove.
"""

from collections.abc import Sequence

import numpy as np

from antiphon_engine import _native
from support.core_driver import CoreDriver
from support.core_events import EventReader
from support.core_fairness import RUNNING, Fairness, Planning
from support.core_fences import Fences
from support.core_values import CoreShape, History, ModelRequest

_COUNTERS = ("num_preemptions_total", "num_evictions_total")


class CoreModel(CoreDriver):
    """Foretells by plain rules what can be foretold, and checks the invariants of the rest."""

    def __init__(self, shape: CoreShape, *, seed: int = 0) -> None:
        super().__init__(shape, seed=seed)
        self.events = EventReader(self.core)
        self._fences = Fences(shape.block_tokens)
        self._fairness = Fairness(shape, self.ghost)
        self._last_plan_us = 0

    def plan(self) -> bool:
        before, stats = self.state(), self.core.stats()
        in_flight = list(self.in_flight)
        num_pauses = {handle: r.num_pauses for handle, r in self.requests.items()}
        planned = super().plan()
        after, grown = self.state(), self.core.stats()
        step = self.in_flight[-1] if planned else None
        planning = Planning(
            step=step,
            before=before,
            after=after,
            in_flight=bool(in_flight),
            was_running=frozenset(before.in_state(*RUNNING)),
            paused=frozenset(h for h, r in self.requests.items() if r.num_pauses > num_pauses[h]),
            counters={name: grown[name] - stats[name] for name in _COUNTERS},
        )
        if step is not None:
            self._fences.check(step, in_flight, after)
        self._fairness.check(planning, self.requests)
        if all(earlier.executed for earlier in in_flight):
            self._check_reuse(planning)
        if self.shape.exact:
            self._fairness.check_exactly(planning, self.requests)
        if self.now_us == self._last_plan_us and not planning.paused:
            self._check_evictions(planning)
        self._last_plan_us = self.now_us
        return planned

    def hold(self, handle: int) -> None:
        super().hold(handle)
        self._fairness.forget(handle)

    def check(self) -> None:
        """Checks the whole state, from inside and from outside."""
        self.core.check_invariants()
        self.times.check()
        state, stats = self.state(), self.core.stats()
        state.check_blocks(self.shape)
        state.check_tree()
        if self.all_executed:
            state.check_contents(self.ghost, skip_host=self._host_in_flight())
        state.check_requests(self.requests, in_flight=bool(self.in_flight))
        assert stats["num_blocks_free"] == len(state.clean)
        assert stats["num_blocks_cached"] == len(state.cached)
        assert stats["num_blocks_used"] == len(state.references)
        num_live = stats["num_running"] + stats["num_waiting"] + stats["num_paused"]
        assert num_live + stats["num_held"] == len(self.requests), "I24: miscounted requests"
        assert stats["num_paused"] == len(state.in_state("paused"))
        resting = state.in_state("held")
        assert stats["num_held"] == len(resting)
        in_flight = {row.handle for step in self.in_flight for row in step.rows}
        assert resting == set(self.held) - in_flight, "I13: a request that is held does not rest"

    def check_match(self, scope: int, tokens: Sequence[int]) -> None:
        """I8: a lookup finds the longest published prefix, in whole blocks."""
        if not self.all_executed:
            return
        naive = self.state().match(self.ghost, History(scope, tokens))
        found = self.core.match_prefix(scope, np.array(tokens, np.int32))
        least = 0 if self.shape.miss_every else naive.device_tokens
        assert least <= found <= naive.whole_tokens, "I8: not the longest published prefix"

    def check_empty(self) -> None:
        """I25: with no request and no session, nothing is held, and a flush leaves nothing."""
        assert not self.requests
        assert not self.in_flight
        stats = self.core.stats()
        assert stats["num_blocks_used"] == 0, "I24: blocks are held with no request there"
        assert stats["num_running"] == stats["num_waiting"] == stats["num_paused"] == 0
        assert stats["num_held"] == 0
        assert self.core.flush_prefix_cache() == stats["num_blocks_cached"]
        state = self.state()
        assert sorted(state.clean) == list(range(1, self.shape.num_blocks)), "I25"
        assert not state.nodes, "I25: a flush leaves blocks"
        assert not state.host_references, "I25: host blocks are held"
        assert len(state.host_clean) == self.shape.num_host_blocks, "I25"

    def _end(self, handle: int) -> None:
        super()._end(handle)
        self._fences.release(handle)
        self._fairness.forget(handle)

    def _find_suspended(self) -> list[ModelRequest]:
        suspended = super()._find_suspended()
        for request in suspended:
            self._fences.release(request.handle)
        return suspended

    def _host_in_flight(self) -> set[int]:
        return {block for step in self.in_flight for block in step.blocks_in_use(_native.TIER_HOST)}

    def _check_reuse(self, planning: Planning) -> None:
        """I8: what is reused is the longest published prefix, all but a token at most."""
        if planning.step is None:
            return
        width, shape = self.shape.block_tokens, self.shape
        for row in planning.step.rows:
            request = self.requests[row.handle]
            if not row.is_new or row.handle in planning.was_running - planning.paused:
                continue  # admitted, and perhaps claimed, by an earlier plan
            longest = request.max_reused
            naive = planning.before.match(self.ghost, request.history)
            most = min(naive.all_tokens, longest)
            if not shape.partial_reuse:
                most = most // width * width
            if not planning.paused:  # who is paused leaves what it had for others to find
                assert row.start <= most, "I8: more is reused than there is"
            if shape.miss_every or planning.counters["num_evictions_total"]:
                continue
            least = min(naive.device_tokens, longest // width * width)
            assert row.start >= least, "I8: less is reused than there is"

    def _check_evictions(self, planning: Planning) -> None:
        """I9: evicted is the leaf of least (priority, last use)."""
        before, after = planning.before, planning.after
        cached = set(before.cached)
        parents = {node.parent for node in before.nodes.values() if node.block != -1}
        kept, evicted = [], []
        for node in before.nodes.values():
            if node.block not in cached:
                continue
            now = after.nodes.get(node.node)
            if now is None or now.uid != node.uid or now.block != node.block:
                evicted.append(node)
            elif now == node and node.block in after.cached and node.node not in parents:
                kept.append(node)
        assert planning.counters["num_evictions_total"] == len(evicted), "I9: miscounted"
        if not kept or not evicted:
            return
        most = max((node.level, node.last_use) for node in evicted)
        least = min((node.level, node.last_use) for node in kept)
        assert most <= least, "I9: another leaf was to be evicted first"
