"""What a request says must not depend on how the core came to compute it."""

import random
from collections import Counter
from dataclasses import dataclass, replace
from functools import lru_cache

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from antiphon_engine import _native
from support.core_driver import CoreDriver
from support.core_runs import VOCABULARY, Conversation, ConversationRun, Outcome
from support.core_values import Ask, CoreShape

CONTEXT = 40
ROOMY = CoreShape(
    num_blocks=129,
    block_tokens=4,
    max_rows=4,
    max_step_tokens=CONTEXT,
    max_context_tokens=CONTEXT,
    max_requests=32,
)
TIGHT = replace(ROOMY, num_blocks=11)
PLAIN = replace(ROOMY, prefix_reuse=False, partial_reuse=False, prefix_deferral=False)
WORDS = st.integers(0, VOCABULARY - 1)


@st.composite
def workloads(draw: st.DrawFn) -> list[Conversation]:
    stem = draw(st.lists(WORDS, min_size=4, max_size=22))
    num_conversations = draw(st.integers(1, 5))
    conversations = []
    for index in range(num_conversations):
        kept = draw(st.sampled_from([len(stem), len(stem), len(stem) - 1, 6, 0]))
        tail = draw(st.lists(WORDS, min_size=1, max_size=4))
        ask = Ask(
            prompt=(*stem[:kept], *tail),
            max_output=draw(st.integers(1, 9)),
            end_ids=draw(st.sampled_from([frozenset(), frozenset([4])])),
            stop_ids=draw(st.sampled_from([frozenset(), frozenset([3])])),
            seed=draw(st.integers(0, 2**64 - 1)),
            output_index=index,
            priority=draw(st.sampled_from([50, 50, 50, 60])),
            leader=draw(st.sampled_from([0, 0, index])),
            session=index + 1,
            retention_priority=draw(st.sampled_from([50, 20, 80])),
        )
        turns = draw(st.lists(st.lists(WORDS, min_size=1, max_size=4).map(tuple), max_size=3))
        after_steps = draw(st.sampled_from([0, 0, 1, 5]))
        conversations.append(Conversation(ask=ask, turns=tuple(turns), after_steps=after_steps))
    return conversations


@lru_cache(maxsize=1024)
def alone(conversation: Conversation) -> list[Outcome]:
    """What it says on a core of its own, computed anew each turn.

    Each variant sees the same conversations, so this is asked for the same ones again and again.
    """
    lone = replace(conversation, ask=replace(conversation.ask, leader=0, session=0), after_steps=0)
    return ConversationRun(CoreDriver(PLAIN), [lone]).run(random.Random(0)).outcomes[0]


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A way to compute, and what shows that it was taken."""

    name: str
    shape: CoreShape
    used: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    in_sessions: bool = True
    with_holds: bool = False
    num_examples: int = 8


LATE = ("inputs that are still unknown",)
VARIANTS = [
    Variant(name="plain", shape=ROOMY, used=("num_reused_tokens_total",)),
    Variant(
        name="no reuse",
        shape=replace(PLAIN, num_blocks=11),
        used=("steps that someone waits through",),
        unused=("num_reused_tokens_total",),
    ),
    Variant(name="run-ahead 1", shape=replace(ROOMY, run_ahead=1), used=LATE),
    Variant(name="run-ahead 2", shape=replace(ROOMY, run_ahead=2), used=LATE),
    Variant(
        name="run-ahead 2 in a small pool",
        shape=replace(TIGHT, run_ahead=2),
        used=(*LATE, "num_evictions_total"),
    ),
    Variant(
        name="chunks of a block",
        shape=replace(ROOMY, chunk_tokens=4),
        used=("chunks that are not the last",),
    ),
    Variant(
        name="small steps",
        shape=replace(ROOMY, max_step_tokens=7),
        used=("chunks that are not the last",),
    ),
    Variant(
        name="equal progress",
        shape=replace(
            ROOMY, chunk_policy="equal_progress", max_step_tokens=11, prefix_deferral=False
        ),
        used=("prompts side by side",),
    ),
    Variant(
        name="equal progress ahead",
        shape=replace(
            TIGHT, chunk_policy="equal_progress", max_step_tokens=11, chunk_tokens=5, run_ahead=1
        ),
        used=LATE,
    ),
    Variant(
        name="max utilization",
        shape=replace(TIGHT, capacity_policy="max_utilization", watermark_blocks=0),
        used=("num_preemptions_total",),
    ),
    Variant(
        name="max utilization ahead",
        shape=replace(TIGHT, capacity_policy="max_utilization", watermark_blocks=0, run_ahead=2),
        used=("num_preemptions_total", *LATE),
        num_examples=30,
    ),
    Variant(
        name="static batch",
        shape=replace(ROOMY, capacity_policy="static_batch", max_rows=2),
        used=("steps that someone waits through",),
    ),
    Variant(
        name="static batch ahead",
        shape=replace(TIGHT, capacity_policy="static_batch", run_ahead=1),
        used=("steps that someone waits through", *LATE),
    ),
    Variant(name="partial reuse", shape=ROOMY, used=("num_copies_on_write_total",)),
    Variant(
        name="whole blocks only",
        shape=replace(ROOMY, partial_reuse=False),
        used=("num_reused_tokens_total",),
        unused=("num_copies_on_write_total",),
    ),
    Variant(name="deferral", shape=ROOMY, used=("num_deferrals_total",)),
    Variant(
        name="no deferral",
        shape=replace(ROOMY, prefix_deferral=False),
        unused=("num_deferrals_total",),
    ),
    Variant(
        name="host tier",
        shape=replace(TIGHT, num_host_blocks=16),
        used=("num_offloads_total", "num_onloads_total"),
    ),
    Variant(
        name="host tier ahead, a copy a step",
        shape=replace(TIGHT, num_host_blocks=16, run_ahead=2, max_step_copies=1),
        used=("num_offloads_total", "num_onloads_total", *LATE),
    ),
    Variant(
        name="host tier of few blocks that often fails",
        shape=replace(
            TIGHT,
            num_host_blocks=3,
            run_ahead=1,
            fail_host_allocation_every=2,
            capacity_policy="max_utilization",
            watermark_blocks=0,
            cooldown_steps=0,
        ),
        used=("num_offloads_total", "num_preemptions_total"),
        num_examples=30,
    ),
    *[
        Variant(
            name=f"a pause every {every}, run-ahead {run_ahead}",
            shape=replace(ROOMY, pause_every=every, run_ahead=run_ahead),
            used=("num_preemptions_total",),
        )
        for every in (1, 2, 3, 4, 5)
        for run_ahead in (0, 1, 2)
    ],
    Variant(
        name="pauses that lose everything",
        shape=replace(PLAIN, pause_every=2, run_ahead=1),
        used=("num_preemptions_total", "num_recomputed_tokens_total"),
    ),
    Variant(name="a miss every 2", shape=replace(ROOMY, miss_every=2)),
    Variant(
        name="always a miss",
        shape=replace(ROOMY, miss_every=1, run_ahead=1),
        unused=("num_reused_tokens_total",),
    ),
    Variant(name="no sessions", shape=TIGHT, in_sessions=False),
    *[
        Variant(
            name=f"holds, run-ahead {run_ahead}",
            shape=replace(ROOMY, run_ahead=run_ahead),
            used=("rests",),
            with_holds=True,
        )
        for run_ahead in (0, 1, 2)
    ],
    Variant(
        name="holds in a small pool with a host tier",
        shape=replace(TIGHT, num_host_blocks=16, run_ahead=1, max_step_copies=1),
        used=("rests", "num_offloads_total"),
        with_holds=True,
    ),
    Variant(
        name="holds beside pauses",
        shape=replace(TIGHT, capacity_policy="max_utilization", watermark_blocks=0),
        used=("rests", "num_preemptions_total"),
        with_holds=True,
        num_examples=30,
    ),
    Variant(
        name="holds that lose everything",
        shape=PLAIN,
        used=("rests", "num_recomputed_tokens_total"),
        with_holds=True,
    ),
]


@st.composite
def mixed_shapes(draw: st.DrawFn) -> CoreShape:
    """Any settings together."""
    reuse = draw(st.sampled_from([True, True, True, False]))
    max_step_tokens = draw(st.sampled_from([5, 9, CONTEXT]))
    may_pause = reuse or max_step_tokens == CONTEXT  # else a prompt of two chunks never ends
    return replace(
        ROOMY,
        num_blocks=draw(st.sampled_from([11, 12, 17, 65])),
        max_rows=draw(st.integers(1, 4)),
        max_step_tokens=max_step_tokens,
        chunk_tokens=draw(st.sampled_from([0, 4, 9])) if max_step_tokens > 9 or reuse else 0,
        chunk_policy=draw(st.sampled_from(_native.CHUNK_POLICIES)),
        capacity_policy=draw(st.sampled_from(_native.CAPACITY_POLICIES)),
        prefix_reuse=reuse,
        partial_reuse=draw(st.booleans()),
        prefix_deferral=draw(st.booleans()),
        watermark_blocks=draw(st.sampled_from([-1, 0])),
        cooldown_steps=draw(st.sampled_from([0, 8])),
        bypass_requests=draw(st.sampled_from([0, 2])),
        bypass_steps=draw(st.sampled_from([0, 8])),
        run_ahead=draw(st.integers(0, 2)),
        num_host_blocks=draw(st.sampled_from([0, 4, 16])),
        max_step_copies=draw(st.sampled_from([0, 1, 3])),
        pause_every=draw(st.sampled_from([0, 2, 3])) if may_pause else 0,
        miss_every=draw(st.sampled_from([0, 0, 3])),
        fail_host_allocation_every=draw(st.sampled_from([0, 0, 3])),
    )


def outcomes(
    shape: CoreShape,
    conversations: list[Conversation],
    seed: int,
    *,
    in_sessions: bool = True,
    with_holds: bool = False,
) -> tuple[list[list[Outcome]], Counter[str]]:
    if not in_sessions:
        conversations = [replace(c, ask=replace(c.ask, session=0)) for c in conversations]
    driver = CoreDriver(shape, seed=seed)
    run = ConversationRun(driver, conversations, with_holds=with_holds)
    report = run.run(random.Random(seed))
    driver.core.check_invariants()
    for session in range(1, len(conversations) + 1):
        driver.core.close_session(session)
    assert driver.core.stats()["num_blocks_used"] == 0, "I25"
    return report.outcomes, report.counters


def bounded(num_examples: int) -> settings:
    return settings(
        max_examples=num_examples,
        deadline=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_what_is_said_is_the_same_by_every_way_of_computing(variant, scale):
    counters: Counter[str] = Counter()

    @bounded(variant.num_examples * scale)
    @given(conversations=workloads(), seed=st.integers(0, 2**32))
    def run(conversations: list[Conversation], seed: int) -> None:
        together, used = outcomes(
            variant.shape,
            conversations,
            seed,
            in_sessions=variant.in_sessions,
            with_holds=variant.with_holds,
        )
        counters.update(used)
        assert together == [alone(conversation) for conversation in conversations]

    run()

    assert [name for name in variant.used if not counters[name]] == [], "a feature went unused"
    assert [name for name in variant.unused if counters[name]] == []


def test_what_is_said_is_the_same_under_any_settings_together(scale):
    @bounded(30 * scale)
    @given(
        shape=mixed_shapes(),
        conversations=workloads(),
        seed=st.integers(0, 2**32),
        with_holds=st.booleans(),
    )
    def run(
        shape: CoreShape, conversations: list[Conversation], seed: int, with_holds: bool
    ) -> None:
        together, _ = outcomes(shape, conversations, seed, with_holds=with_holds)
        assert together == [alone(conversation) for conversation in conversations]

    run()
