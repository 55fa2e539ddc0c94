"""Settings of the core, one at a time, each by what it does to a few requests."""

from dataclasses import replace

import numpy as np
import pytest

from antiphon_engine import _native
from support.core_driver import CoreDriver
from support.core_model import CoreModel
from support.core_values import Ask, CoreShape, History

ROOMY = CoreShape(
    num_blocks=65,
    block_tokens=4,
    max_rows=4,
    max_step_tokens=16,
    max_context_tokens=64,
    max_requests=16,
)


def ones(_history: History, _uniform: float) -> int:
    return 1


def prompt(length: int, first: int) -> tuple[int, ...]:
    return (first, *range(100, 99 + length))


def q_lens(model: CoreDriver) -> dict[int, int]:
    """Tokens that each request computes in the step planned last."""
    return {row.handle: row.end - row.start for row in model.in_flight[-1].rows}


def test_first_come_first_served_gives_the_first_prompt_all_it_can_use():
    model = CoreModel(ROOMY)
    scope = model.scope("one")
    handles = [model.submit(Ask(prompt=prompt(20, first), scope=scope)) for first in (1, 2)]

    model.plan()

    assert q_lens(model) == {handles[0]: 16}


def test_equal_progress_gives_each_prompt_a_unit_in_turn():
    model = CoreModel(replace(ROOMY, chunk_policy="equal_progress"))
    scope = model.scope("one")
    handles = [model.submit(Ask(prompt=prompt(20, first), scope=scope)) for first in (1, 2)]

    model.plan()

    assert q_lens(model) == {handles[0]: 8, handles[1]: 8}


@pytest.mark.parametrize("chunk_tokens", [0, 8, 12, 16])
def test_equal_progress_goes_on_where_less_than_a_unit_is_left(chunk_tokens):
    shape = replace(
        ROOMY, chunk_policy="equal_progress", chunk_tokens=chunk_tokens, max_step_tokens=8
    )
    model = CoreModel(shape)
    scope = model.scope("one")
    model.submit(Ask(prompt=prompt(4, 1), scope=scope, max_output=40))
    model.step(ones)

    newcomer = model.submit(Ask(prompt=prompt(20, 2), scope=scope, max_output=2))
    for _ in range(8):
        model.step(ones)

    assert newcomer in model.ended, "a prompt waits for those who decode"


def test_static_batch_lets_nobody_in_until_the_batch_has_ended():
    model = CoreModel(replace(ROOMY, capacity_policy="static_batch"))
    scope = model.scope("one")
    first = [model.submit(Ask(prompt=prompt(4, n), scope=scope, max_output=n)) for n in (2, 5)]
    model.step(ones)
    late = model.submit(Ask(prompt=prompt(4, 7), scope=scope, max_output=2))

    while any(handle in model.requests for handle in first):
        assert not model.requests[late].started
        model.step(ones)
    model.run(ones)

    assert len(model.ended[late].outputs) == 2


def test_higher_priority_is_admitted_first_and_equals_in_order_of_arrival():
    model = CoreModel(replace(ROOMY, max_rows=1, bypass_requests=0))
    scope = model.scope("one")
    asked = [50, 10, 90, 50, 90]
    handles = [
        model.submit(Ask(prompt=prompt(4, n), scope=scope, max_output=1, priority=priority))
        for n, priority in enumerate(asked)
    ]

    model.run(ones)

    assert list(model.ended) == [handles[n] for n in (2, 4, 0, 3, 1)]


def test_max_utilization_admits_by_the_prompt_and_promises_by_the_whole():
    asks = [Ask(prompt=prompt(8, first), max_output=20) for first in range(4)]
    num_running = {}
    for policy in ("guaranteed_no_evict", "max_utilization"):
        shape = replace(ROOMY, num_blocks=17, max_step_tokens=64, capacity_policy=policy)
        model = CoreModel(replace(shape, watermark_blocks=0))
        scope = model.scope("one")
        for ask in asks:
            model.submit(replace(ask, scope=scope))
        model.step(ones)
        num_running[policy] = model.stats()["num_running"]
        model.run(ones)

    assert num_running == {"guaranteed_no_evict": 2, "max_utilization": 4}


def test_cooldown_keeps_newcomers_out_after_a_pause():
    shape = replace(
        ROOMY,
        num_blocks=9,
        block_tokens=2,
        max_context_tokens=17,
        capacity_policy="max_utilization",
        watermark_blocks=0,
        cooldown_steps=5,
    )
    model = CoreModel(shape)
    scope = model.scope("one")
    for first in (1, 2):
        model.submit(Ask(prompt=prompt(4, first), scope=scope, max_output=12))
    while not model.stats()["num_paused"]:
        model.step(ones)
    newcomer = model.submit(Ask(prompt=prompt(1, 3), scope=scope, max_output=1, priority=99))

    for _ in range(5):
        assert not model.requests[newcomer].started
        model.step(ones)

    model.run(ones)


def test_request_waits_for_a_block_that_another_computes_in_this_step():
    model = CoreModel(ROOMY)
    scope = model.scope("one")
    ask = Ask(prompt=prompt(12, 1), scope=scope)
    model.submit(ask)
    twin = model.submit(ask)

    model.plan()
    deferred = not model.requests[twin].started
    model.drain(ones)
    model.plan()

    assert deferred
    assert model.requests[twin].reused == 11
    assert model.stats()["num_deferrals_total"] == 1


def test_outputs_of_one_prompt_share_its_last_block_until_they_write():
    model = CoreModel(ROOMY)
    scope = model.scope("one")
    ask = Ask(prompt=prompt(10, 1), scope=scope, max_output=6)
    leader = model.submit(ask)
    followers = [model.submit(replace(ask, leader=leader, output_index=n)) for n in (1, 2)]

    model.run(ones)

    assert [model.ended[handle].reused for handle in followers] == [9, 9]
    assert model.stats()["num_copies_on_write_total"] == 2
    assert model.stats()["num_prefilled_tokens_total"] == 12


@pytest.mark.parametrize("equal_tokens", [1, 2, 3])
def test_beginning_of_a_block_is_reused_by_a_copy(equal_tokens):
    model = CoreModel(ROOMY)
    scope = model.scope("one")
    model.submit(Ask(prompt=(1, 2, 3, 4, 5, 6, 7, 8, 9), scope=scope))
    model.run(ones)

    shared = (5, 6, 7, 8)[:equal_tokens]
    second = model.submit(Ask(prompt=(1, 2, 3, 4, *shared, 50, 51, 52, 53), scope=scope))
    model.run(ones)
    model.check()

    assert model.ended[second].reused == 4 + equal_tokens


def test_prefix_on_the_host_is_computed_again_where_that_is_cheaper():
    reused = {}
    for cost in (0, 100):
        shape = replace(ROOMY, num_blocks=13, num_host_blocks=16, onload_cost_tokens=cost)
        model = CoreModel(shape)
        scope = model.scope("one")
        first = Ask(prompt=prompt(17, 1), scope=scope, max_output=1)
        for ask in (first, Ask(prompt=prompt(45, 2), scope=scope, max_output=1)):
            model.submit(ask)
            model.run(ones)
        again = model.submit(first)
        model.run(ones)
        reused[cost] = model.ended[again].reused

    assert reused == {0: 16, 100: 0}


def test_tokens_are_told_while_the_request_lives():
    model = CoreModel(replace(ROOMY, run_ahead=1))
    handle = model.submit(Ask(prompt=(3, 4, 5), scope=model.scope("one"), max_output=3))
    told = [list(model.core.tokens(handle))]
    while model.requests:
        model.step(ones)
        told.append(list(model.core.tokens(handle)))

    assert told[0] == [3, 4, 5]
    assert [3, 4, 5, 1, 1] in told
    assert told[-1] == []


def test_path_hashes_name_blocks_alike_in_every_core():
    tokens = np.array(prompt(14, 1), np.int32)
    named = []
    for _ in range(2):
        model = CoreModel(replace(ROOMY, num_kv_events=64))
        scope = model.core.intern_scope(tenant="t", cache_scope="c", adapter="a", weights="w")
        other = model.scope("another")
        model.submit(Ask(prompt=tuple(tokens), scope=scope, max_output=1))
        model.run(ones)
        _, blocks = model.core.kv_snapshot()
        named.append([int(name) for name in model.core.path_hashes(scope, tokens)])
        assert [block[0] for block in blocks] == named[-1]
        assert not set(named[-1]) & {int(name) for name in model.core.path_hashes(other, tokens)}

    assert named[0] == named[1]
    assert len(set(named[0])) == 3


def test_reader_that_fell_behind_goes_on_from_a_snapshot():
    model = CoreModel(replace(ROOMY, num_kv_events=4))
    scope = model.scope("one")
    for first in range(3):
        model.submit(Ask(prompt=prompt(20, first), scope=scope, max_output=1))
        model.run(ones)

    model.events.catch_up()
    model.core.flush_prefix_cache()
    model.events.catch_up()

    assert model.events.num_losses >= 1
    assert model.events.known == {}


def test_reader_that_keeps_up_loses_nothing():
    shape = replace(ROOMY, num_blocks=13, num_host_blocks=4, num_kv_events=32)
    model = CoreModel(shape)
    scope = model.scope("one")
    for first in range(8):
        model.submit(Ask(prompt=prompt(20, first), scope=scope, max_output=1))
        while model.requests:
            model.step(ones)
            model.events.catch_up()

    assert model.events.num_losses == 0
    assert model.events.num_events > 40


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"capacity_policy": "optimistic"}, "capacity_policy"),
        ({"chunk_policy": "random"}, "chunk_policy"),
        ({"run_ahead": 3}, "run_ahead"),
        ({"run_ahead": -1}, "run_ahead"),
        ({"run_ahead": 2, "num_buffer_sets": 2}, "num_buffer_sets"),
        ({"num_host_blocks": -1}, "num_host_blocks"),
        ({"max_sessions": 0}, "max_sessions"),
        ({"stall_passes": 0}, "stall_passes"),
        ({"pause_every": -1}, "pause_every"),
        ({"bypass_requests": -1}, "bypass_requests"),
    ],
)
def test_settings_that_mean_nothing_are_refused_by_name(wrong, says):
    with pytest.raises(ValueError, match=says):
        replace(ROOMY, **wrong).make_core()


@pytest.mark.parametrize(
    "wrong", [{"retention_priority": 101}, {"retention_priority": -1}, {"retention_us": -1}]
)
def test_retention_out_of_range_is_refused(wrong):
    model = CoreModel(ROOMY)

    with pytest.raises(ValueError, match="retention"):
        model.submit(Ask(prompt=(1, 2), scope=model.scope("one"), **wrong))


def test_known_faults_are_off_by_default():
    stats = _native.EngineCore(
        num_blocks=9,
        block_tokens=2,
        max_rows=2,
        max_step_tokens=8,
        max_context_tokens=16,
        max_requests=4,
    ).stats()

    assert stats["num_preemptions_total"] == 0
