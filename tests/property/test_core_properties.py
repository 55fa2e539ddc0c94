"""The native core against a naive model, over random histories on pools of a few blocks."""

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from antiphon_engine import _native
from support.core_model import CoreModel
from support.core_values import Ask, CoreShape, ModelRequest

TOKENS = st.integers(0, 2)  # few, so that prefixes meet by chance
STEMS = [[0, 1, 0, 0, 1, 1] * 4, [0] * 24]
SCOPES = st.sampled_from(["one", "two"])


@st.composite
def shapes(draw: st.DrawFn) -> CoreShape:
    block_tokens = draw(st.integers(2, 4))
    max_step_tokens = draw(st.integers(block_tokens, 12))
    return CoreShape(
        num_blocks=draw(st.integers(4, 12)) + 1,
        block_tokens=block_tokens,
        max_rows=draw(st.sampled_from([1, 2, 3, 4])),
        max_step_tokens=max_step_tokens,
        max_context_tokens=draw(st.integers(8, 24)),
        max_requests=draw(st.integers(2, 8)),
        chunk_tokens=draw(st.sampled_from([0, block_tokens, block_tokens + 1, 2 * block_tokens])),
        prefix_reuse=draw(st.sampled_from([True, True, True, False])),
    )


class CoreMachine(RuleBasedStateMachine):
    """Submits, steps and ends requests at random; checks everything after each rule."""

    @initialize(shape=shapes())
    def start(self, shape: CoreShape) -> None:
        self.model = CoreModel(shape)

    @rule(data=st.data(), scope=SCOPES, copies=st.sampled_from([1, 1, 2, 3]))
    def submit(self, data: st.DataObject, scope: str, copies: int) -> None:
        """One prompt or several equal ones, which then compute the same blocks side by side."""
        model, shape = self.model, self.model.shape
        pool_tokens = (shape.num_blocks - 1) * shape.block_tokens
        longest = min(shape.max_context_tokens - 1, pool_tokens)
        stem = data.draw(st.sampled_from(STEMS))[: data.draw(st.integers(0, longest))]
        tail = data.draw(st.lists(TOKENS, min_size=not stem, max_size=4))
        ask = Ask(
            prompt=tuple([*stem, *tail][:longest]),
            scope=model.scope(scope),
            max_output=data.draw(st.integers(1, 10)),
            end_ids=data.draw(st.sampled_from([frozenset(), frozenset(), frozenset([2])])),
            stop_ids=data.draw(st.sampled_from([frozenset(), frozenset(), frozenset([1, 2])])),
            priority=data.draw(st.sampled_from([50, 50, 40, 60])),
            leader=data.draw(st.sampled_from([0, *model.requests, *list(model.ended)[-1:]])),
        )
        for _ in range(copies):
            self._submit(ask)

    @rule(length=st.integers(0, 40), max_output=st.integers(1, 40))
    def submit_at_limits(self, length: int, max_output: int) -> None:
        scope = self.model.scope("one")
        self._submit(Ask(prompt=(0,) * length, scope=scope, max_output=max_output))

    @rule(data=st.data())
    @precondition(lambda self: self.model.ended)
    def submit_next_turn(self, data: st.DataObject) -> None:
        """Goes on from where an earlier request ended, as a conversation does."""
        earlier = data.draw(st.sampled_from(list(self.model.ended)[-4:]))
        request = self.model.ended[earlier]
        added = data.draw(st.lists(TOKENS, min_size=1, max_size=4))
        self._submit(replace(request.ask, prompt=(*request.tokens, *added), leader=0))

    @rule(data=st.data(), count=st.sampled_from([1, 2, 4, 8]))
    @precondition(lambda self: self.model.requests or self.model.in_flight)
    def step(self, data: st.DataObject, count: int) -> None:
        for _ in range(count):
            if not self.model.in_flight and not self.model.plan():
                return
            self._commit(data)
            self.model.check()

    @rule()
    @precondition(lambda self: not self.model.in_flight)
    def plan(self) -> None:
        self.model.plan()

    @rule(data=st.data())
    @precondition(lambda self: self.model.requests)
    def abort(self, data: st.DataObject) -> None:
        self.model.abort(self._any_handle(data))

    @rule(data=st.data(), keep=st.integers(0, 4))
    @precondition(lambda self: self.model.requests)
    def finish(self, data: st.DataObject, keep: int) -> None:
        self.model.finish(self._any_handle(data), keep)

    @rule()
    def flush(self) -> None:
        num_cached = self.model.core.stats()["num_blocks_cached"]
        assert self.model.core.flush_prefix_cache() == num_cached

    @rule(tokens=st.lists(TOKENS, max_size=16), scope=SCOPES)
    def match(self, tokens: list[int], scope: str) -> None:
        self.model.check_match(self.model.scope(scope), tokens)

    @invariant()
    def holds(self) -> None:
        if hasattr(self, "model"):
            self.model.check()

    def teardown(self) -> None:
        if not hasattr(self, "model"):
            return
        if self.model.in_flight:
            self.model.commit(lambda _request, _uniform: 0)
        self.model.run(lambda _request, _uniform: 0)
        self.model.check()
        stats = self.model.core.stats()
        assert stats["num_blocks_used"] == 0, "I24: blocks are held with no request there"
        assert stats["num_running"] == stats["num_waiting"] == 0

    def _submit(self, ask: Ask) -> None:
        model, shape = self.model, self.model.shape
        request = ModelRequest(ask=ask, handle=0, arrival=0)
        if not ask.prompt or len(ask.prompt) >= shape.max_context_tokens:
            with pytest.raises(ValueError, match="prompt"):
                model.submit(ask)
        elif request.blocks_needed(shape) > shape.num_blocks - 1:
            with pytest.raises(_native.NeverFitsError) as refused:
                model.submit(ask)
            assert refused.value.args == (request.blocks_needed(shape), shape.num_blocks - 1)
        elif len(model.requests) + self._num_draining() == shape.max_requests:
            with pytest.raises(_native.QueueFullError):
                model.submit(ask)
        else:
            model.submit(ask)

    def _num_draining(self) -> int:
        return self.model.core.dump_state().count('"draining"')

    def _commit(self, data: st.DataObject) -> None:
        self.model.commit(lambda _request, _uniform: data.draw(TOKENS))

    def _any_handle(self, data: st.DataObject) -> int:
        handles = [*self.model.requests, *list(self.model.ended)[-3:]]
        return data.draw(st.sampled_from(handles))


TestCore = CoreMachine.TestCase
TestCore.settings = settings(
    max_examples=200,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
