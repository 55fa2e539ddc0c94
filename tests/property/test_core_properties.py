"""The native core against plain rules, over random histories on pools of a few blocks."""

from collections import Counter
from collections.abc import Callable
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
    run_state_machine_as_test,
)

from antiphon_engine import _native
from support.core_lives import CoreLife
from support.core_model import CoreModel
from support.core_shapes import Choose, any_shape, plain_shape
from support.core_steps import Sampler
from support.core_values import Ask, CoreShape

TOKENS = st.integers(0, 2)  # few, so that prefixes meet by chance
STEMS = [[0, 1, 0, 0, 1, 1] * 4, [0] * 24]
SCOPES = st.sampled_from(["one", "two"])
SALTS = st.integers(0, 7)
SESSIONS = st.sampled_from([0, 0, 1, 2, 3])


def salted(salt: int) -> Sampler:
    """Draws tokens that differ with the history and the salt."""
    return lambda history, _uniform: hash((history.chains[-1], salt)) % 3


def drawn(make: Callable[[Choose], CoreShape]) -> st.SearchStrategy[CoreShape]:
    """Shapes as Hypothesis picks their values."""

    @st.composite
    def shapes(draw: st.DrawFn) -> CoreShape:
        return make(lambda values: draw(st.sampled_from(values)))

    return shapes()


class CoreMachine(RuleBasedStateMachine):
    """Submits, steps and ends requests at random; checks everything after each rule."""

    shapes = drawn(plain_shape)

    def __init__(self) -> None:
        super().__init__()
        self.model: CoreModel | None = None

    @initialize(data=st.data(), seed=st.integers(0, 99))
    def start(self, data: st.DataObject, seed: int) -> None:
        self.model = CoreModel(data.draw(self.shapes), seed=seed)

    @rule(data=st.data(), scope=SCOPES, copies=st.sampled_from([1, 1, 2, 3]), session=SESSIONS)
    def submit(self, data: st.DataObject, scope: str, copies: int, session: int) -> None:
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
            session=session,
            retention_priority=data.draw(st.sampled_from([50, 50, 0, 80])),
            retention_us=data.draw(st.sampled_from([0, 0, 1, 1000])),
        )
        for _ in range(copies):
            self._submit(ask)

    @rule(length=st.integers(0, 40), max_output=st.integers(1, 40))
    def submit_at_limits(self, length: int, max_output: int) -> None:
        scope = self.model.scope("one")
        self._submit(Ask(prompt=(0,) * length, scope=scope, max_output=max_output))

    @rule(data=st.data(), session=SESSIONS, cut=st.integers(0, 3))
    @precondition(lambda self: self.model.ended)
    def submit_next_turn(self, data: st.DataObject, session: int, cut: int) -> None:
        """Goes on from where an earlier request ended, or from a few tokens before."""
        earlier = data.draw(st.sampled_from(list(self.model.ended)[-4:]))
        request = self.model.ended[earlier]
        kept = request.tokens[: len(request.tokens) - cut]
        added = data.draw(st.lists(TOKENS, min_size=1, max_size=4))
        self._submit(replace(request.ask, prompt=(*kept, *added), leader=0, session=session))

    @rule(count=st.sampled_from([1, 2, 4, 8]), salt=SALTS)
    @precondition(lambda self: self.model.requests or self.model.in_flight)
    def step(self, count: int, salt: int) -> None:
        for _ in range(count):
            self.model.step(salted(salt))
            self.model.check()

    @rule()
    @precondition(lambda self: self.model.may_plan)
    def plan(self) -> None:
        self.model.plan()

    @rule(salt=SALTS)
    @precondition(lambda self: not self.model.all_executed)
    def execute(self, salt: int) -> None:
        self.model.execute(salted(salt))

    @rule()
    @precondition(lambda self: self.model.in_flight and self.model.in_flight[0].executed)
    def commit(self) -> None:
        self.model.commit()

    @rule(data=st.data())
    @precondition(lambda self: self.model.requests)
    def abort(self, data: st.DataObject) -> None:
        self.model.abort(self._any_handle(data))

    @rule(data=st.data(), keep=st.integers(0, 4))
    @precondition(lambda self: self.model.requests)
    def finish(self, data: st.DataObject, keep: int) -> None:
        self.model.finish(self._any_handle(data), keep)

    @rule(data=st.data())
    @precondition(lambda self: self.model.requests)
    def hold(self, data: st.DataObject) -> None:
        self.model.hold(self._any_handle(data))

    @rule(data=st.data())
    @precondition(lambda self: self.model.held)
    def release(self, data: st.DataObject) -> None:
        self.model.release(data.draw(st.sampled_from(self.model.held)))

    @rule(by_us=st.sampled_from([1, 500, 10_000]))
    def jump_clock(self, by_us: int) -> None:
        self.model.now_us += by_us

    @rule()
    def flush(self) -> None:
        num_cached = self.model.core.stats()["num_blocks_cached"]
        assert self.model.core.flush_prefix_cache() == num_cached

    @rule(tokens=st.lists(TOKENS, max_size=16), scope=SCOPES)
    def match(self, tokens: list[int], scope: str) -> None:
        self.model.check_match(self.model.scope(scope), tokens)

    @invariant()
    def holds(self) -> None:
        if self.model is not None:
            self.model.check()

    def teardown(self) -> None:
        if self.model is None:
            return
        self.model.run(lambda _history, _uniform: 0)
        self.model.check()
        self.close_sessions()
        self.model.check_empty()

    def close_sessions(self) -> None:
        """The plain core has none."""

    def _submit(self, ask: Ask) -> None:
        model, shape = self.model, self.model.shape
        needed = ask.blocks_needed(shape)
        if not ask.prompt or len(ask.prompt) >= shape.max_context_tokens:
            with pytest.raises(ValueError, match="prompt"):
                model.submit(ask)
        elif needed > shape.num_blocks - 1:
            with pytest.raises(_native.NeverFitsError) as refused:
                model.submit(ask)
            assert refused.value.args == (needed, shape.num_blocks - 1)
        elif len(model.requests) + len(model.state().in_state("draining")) == shape.max_requests:
            with pytest.raises(_native.QueueFullError):
                model.submit(ask)
        else:
            model.submit(ask)

    def _any_handle(self, data: st.DataObject) -> int:
        handles = [*self.model.requests, *list(self.model.ended)[-3:]]
        return data.draw(st.sampled_from(handles))


class FullCoreMachine(CoreMachine):
    """All settings, with sessions and a reader of events that falls behind."""

    shapes = drawn(any_shape)

    @rule(session=st.integers(1, 3), new_session=st.integers(4, 5))
    def fork_session(self, session: int, new_session: int) -> None:
        core = self.model.core
        if core.fork_session(session, new_session):
            assert core.rewind_session(new_session, 99), "I26: a fork has no tip"

    @rule(session=st.integers(1, 5), num_tokens=st.integers(0, 16))
    def rewind_session(self, session: int, num_tokens: int) -> None:
        self.model.core.rewind_session(session, num_tokens)

    @rule(session=st.integers(1, 5))
    def close_session(self, session: int) -> None:
        core = self.model.core
        core.close_session(session)
        assert not core.close_session(session), "I5: a session is closed twice"
        assert not core.rewind_session(session, 4), "I26: a closed session has a tip"
        assert not core.fork_session(session, 6), "I26: a closed session is forked"

    @rule(limit=st.integers(1, 8))
    @precondition(lambda self: self.model.shape.num_kv_events)
    def read_events(self, limit: int) -> None:
        self.model.events.read(limit)

    @rule()
    @precondition(lambda self: self.model.shape.num_kv_events)
    def catch_up_with_events(self) -> None:
        self.model.events.catch_up()

    def close_sessions(self) -> None:
        for session in range(1, 6):
            self.model.core.close_session(session)
        if self.model.shape.num_kv_events:
            self.model.events.catch_up()


FEATURES = (
    "num_reused_tokens_total",
    "num_evictions_total",
    "num_preemptions_total",
    "num_recomputed_tokens_total",
    "num_offloads_total",
    "num_onloads_total",
    "num_copies_on_write_total",
    "num_deferrals_total",
    "num_bypasses_total",
    "rests",
    "withheld",
)


@pytest.mark.parametrize(("machine", "num_examples"), [(CoreMachine, 16), (FullCoreMachine, 32)])
@pytest.mark.timeout(0)
def test_core_keeps_its_invariants_over_random_histories(machine, num_examples, scale):
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=num_examples * scale,
            stateful_step_count=40,
            deadline=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.timeout(0)
def test_core_keeps_its_invariants_over_long_lives(scale):
    counters: Counter[str] = Counter()
    for seed in range(16 * scale):
        life = CoreLife(seed)
        try:
            counters.update(life.live(num_actions=150))
        except Exception as fault:
            fault.add_note(f"seed {seed}, {life.shape}")
            raise

    assert [name for name in FEATURES if not counters[name]] == [], "a feature went unused"
