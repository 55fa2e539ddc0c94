"""Faults of other engines by which nothing ran any more, or someone waited for ever."""

import math
import random
from dataclasses import replace

import pytest

from antiphon_engine import _native
from support.core_driver import CoreDriver
from support.core_model import CoreModel
from support.core_runs import fake_model
from support.core_values import Ask, CoreShape, History

ROOMY = CoreShape(
    num_blocks=65,
    block_tokens=4,
    max_rows=4,
    max_step_tokens=16,
    max_context_tokens=64,
    max_requests=32,
)
PRESSED = replace(
    ROOMY,
    num_blocks=13,
    block_tokens=2,
    max_context_tokens=24,
    capacity_policy="max_utilization",
    watermark_blocks=0,
)


def constant(_history: History, _uniform: float) -> int:
    return 1


def prompt(length: int, first: int) -> tuple[int, ...]:
    """A prompt that shares no block with one of another first token."""
    return (first, *range(100, 99 + length))


def first_rows(model: CoreDriver) -> list[int]:
    """Handles that the last plan admitted."""
    return [row.handle for row in model.in_flight[-1].rows if row.is_new]


@pytest.mark.parametrize("policy", _native.CAPACITY_POLICIES)
def test_fault_01_what_never_fits_is_refused_and_the_queue_goes_on(policy):
    model = CoreModel(replace(ROOMY, num_blocks=9, capacity_policy=policy))
    scope = model.scope("one")

    with pytest.raises(_native.NeverFitsError) as refused:
        model.submit(Ask(prompt=prompt(30, 1), scope=scope, max_output=4))
    fitting = model.submit(Ask(prompt=prompt(30, 1), scope=scope, max_output=3))
    small = model.submit(Ask(prompt=prompt(4, 2), scope=scope))
    model.run(constant)

    assert refused.value.args == (9, 8)
    assert len(model.ended[fitting].outputs) == 3
    assert len(model.ended[small].outputs) == 4


@pytest.mark.parametrize("policy", _native.CAPACITY_POLICIES)
def test_fault_02_two_loads_from_the_host_do_not_lock_each_other_out(policy):
    shape = CoreShape(
        num_blocks=2049,
        block_tokens=2,
        max_rows=4,
        max_step_tokens=1024,
        max_context_tokens=4097,
        num_host_blocks=4096,
        capacity_policy=policy,
    )
    driver = CoreDriver(shape)
    scope = driver.scope("one")
    prefixes = [prompt(2 * 512, 1), prompt(2 * 736, 2)]
    for prefix in [*prefixes, prompt(4090, 3)]:
        driver.submit(Ask(prompt=prefix, scope=scope, max_output=1))
        driver.run(constant)
    evicted_to_host = driver.stats()["num_offloads_total"]

    suffix = tuple(range(10_000, 11_400))
    handles = [
        driver.submit(Ask(prompt=(*prefix, *suffix), scope=scope, max_output=20))
        for prefix in prefixes
    ]
    driver.run(constant)

    assert evicted_to_host >= 1200
    assert driver.stats()["num_onloads_total"] >= 1000
    assert [len(driver.ended[handle].outputs) for handle in handles] == [20, 20]


@pytest.mark.parametrize("run_ahead", [1, 2])
def test_fault_03_nobody_is_paused_whose_blocks_are_in_flight(run_ahead):
    # The model checks at each pause that the victim has no row in flight.
    model = CoreModel(replace(PRESSED, run_ahead=run_ahead))
    scope = model.scope("one")
    handles = [
        model.submit(Ask(prompt=prompt(4, first), scope=scope, max_output=12)) for first in range(3)
    ]

    model.run(constant)

    pauses = [model.ended[handle].num_pauses for handle in handles]
    assert pauses[0] == 0, "the first had to make room for those behind it"
    assert 1 <= sum(pauses) <= 4, "one lack of a block paused many"


def test_fault_04_long_prompts_are_not_started_to_be_thrown_away():
    num_prompt = 12_000
    shape = CoreShape(
        num_blocks=15_000 // 16,
        block_tokens=16,
        max_rows=4,
        max_step_tokens=2048,
        max_context_tokens=12_400,
        capacity_policy="max_utilization",
    )
    driver = CoreDriver(shape)
    scope = driver.scope("one")
    for first in (1, 2):
        driver.submit(Ask(prompt=prompt(num_prompt, first), scope=scope, max_output=40))

    driver.run(constant)

    stats = driver.stats()
    assert stats["num_generated_tokens_total"] == 80
    assert stats["num_recomputed_tokens_total"] <= num_prompt


def test_fault_05_duplicates_do_not_wait_for_one_who_waits_himself():
    model = CoreModel(replace(ROOMY, num_blocks=13, max_step_tokens=8))
    scope = model.scope("one")
    model.submit(Ask(prompt=prompt(8, 1), scope=scope, max_output=12))
    model.step(constant)
    contributor = Ask(prompt=prompt(24, 2), scope=scope, max_output=24)
    model.submit(contributor)
    for max_output in (2, 3, 4):
        model.submit(replace(contributor, max_output=max_output))

    num_steps = 0
    while model.requests:
        assert model.step(constant), "nothing runs"
        num_steps += 1

    assert num_steps < 80


def test_fault_06_budget_holds_where_a_matched_prefix_is_evicted_meanwhile():
    # The first claim of a step evicts what the second request had found before. The model checks
    # the step's budget, and what is reused against what is there.
    shape = replace(ROOMY, num_blocks=9, max_step_tokens=20, partial_reuse=False)
    model = CoreModel(shape)
    scope = model.scope("one")
    cached = Ask(prompt=prompt(17, 1), scope=scope, max_output=1)
    model.submit(cached)
    model.run(constant)

    model.submit(Ask(prompt=prompt(19, 2), scope=scope, max_output=2))
    second = model.submit(replace(cached, max_output=2, priority=40))
    model.plan()
    model.check()
    model.run(constant)

    assert model.stats()["num_evictions_total"] > 0
    assert model.ended[second].outputs == [1, 1]


def test_fault_07_max_utilization_is_no_slower_than_promises_when_memory_is_short():
    steps = {}
    for policy in ("guaranteed_no_evict", "max_utilization"):
        shape = replace(
            ROOMY,
            num_blocks=101,
            max_rows=24,
            max_step_tokens=64,
            max_context_tokens=120,
            max_requests=200,
            capacity_policy=policy,
        )
        driver, rng = CoreDriver(shape), random.Random(7)
        scope = driver.scope("one")
        for first in range(120):
            ask = Ask(
                prompt=prompt(rng.randint(4, 24), first),
                scope=scope,
                max_output=64,
                end_ids=frozenset([0]),
                seed=first,
            )
            driver.submit(ask)
        driver.run(lambda _history, uniform: 0 if uniform < 0.04 else 1)
        steps[policy] = driver.stats()["step"]
        if policy == "max_utilization":
            assert driver.stats()["num_preemptions_total"] > 0

    assert steps["max_utilization"] <= steps["guaranteed_no_evict"] / 0.9


def test_fault_08_a_large_request_at_the_head_is_passed_by_a_few_and_then_starts():
    model = CoreModel(replace(ROOMY, num_blocks=13, max_rows=6, bypass_requests=3))
    scope = model.scope("one")
    model.submit(Ask(prompt=prompt(8, 1), scope=scope, max_output=20))
    model.step(constant)
    large = model.submit(Ask(prompt=prompt(40, 2), scope=scope, max_output=8))
    num_passing = 0
    for first in range(3, 60):
        model.submit(Ask(prompt=prompt(3, first), scope=scope, max_output=2))
        model.step(constant)
        if model.requests[large].running:
            break
        everyone = [*model.requests.values(), *model.ended.values()]
        num_passing = sum(r.started and r.arrival > 2 for r in everyone)

    assert model.requests[large].running, "the large one starves"
    assert 1 <= num_passing <= 3
    model.run(constant)


def test_fault_09_a_paused_request_resumes_before_those_who_came_later():
    model = CoreModel(replace(PRESSED, bypass_requests=0, cooldown_steps=2))
    scope = model.scope("one")
    for first in range(3):
        model.submit(Ask(prompt=prompt(4, first), scope=scope, max_output=10))
    while not model.stats()["num_paused"]:
        model.step(constant)
    paused = next(r for r in model.requests.values() if r.num_pauses)
    newcomers = set()
    num_steps = 0
    while not paused.running:
        newcomers.add(
            model.submit(Ask(prompt=prompt(2, 50 + num_steps), scope=scope, max_output=2))
        )
        model.step(constant)
        num_steps += 1
        started = {r.handle for r in model.requests.values() if r.started} | set(model.ended)
        assert paused.running or not newcomers & started
        assert num_steps <= 12, "those who decode keep a paused request out"
    model.run(constant)


def test_fault_10_priorities_never_take_back_what_a_step_has_given():
    num_preemptions = 0
    for seed in range(12):
        rng = random.Random(seed)
        shape = replace(PRESSED, max_rows=rng.randint(2, 5), run_ahead=rng.randint(0, 2))
        model = CoreModel(shape, seed=seed)
        scope = model.scope("one")
        for first in range(8):
            priority = rng.randint(0, 100)
            length, max_output = rng.randint(1, 8), rng.randint(1, 10)
            model.submit(
                Ask(
                    prompt=prompt(length, first),
                    scope=scope,
                    max_output=max_output,
                    priority=priority,
                )
            )
            for _ in range(rng.randint(0, 3)):
                model.step(fake_model)
                model.check()
        model.run(fake_model)
        num_preemptions += model.stats()["num_preemptions_total"]
        outputs = [len(request.outputs) for request in model.ended.values()]
        assert outputs == [request.ask.max_output for request in model.ended.values()]

    assert num_preemptions > 0


def test_fault_11_those_who_wait_take_no_place_from_those_who_can_run():
    model = CoreModel(replace(ROOMY, max_rows=2, max_step_tokens=8, chunk_tokens=4))
    scope = model.scope("one")
    ask = Ask(prompt=prompt(40, 1), scope=scope, max_output=2)
    leader = model.submit(ask)
    for _ in range(6):
        model.submit(replace(ask, leader=leader))
    model.step(constant)

    stranger = model.submit(Ask(prompt=prompt(4, 2), scope=scope, max_output=2))
    model.step(constant)

    assert model.requests[stranger].running
    model.run(constant)


def test_fault_12_paused_requests_resume_in_the_order_in_which_they_came():
    shape = replace(PRESSED, num_blocks=17, max_rows=4, cooldown_steps=0, bypass_requests=0)
    model = CoreModel(shape)
    scope = model.scope("one")
    handles = [
        model.submit(Ask(prompt=prompt(4, first), scope=scope, max_output=14)) for first in range(4)
    ]
    resumed: list[int] = []
    most_paused = 0
    while model.requests:
        waiting = [h for h in handles if h in model.requests and not model.requests[h].running]
        model.plan()
        again = [h for h in first_rows(model) if model.requests[h].num_pauses]
        assert again == waiting[: len(again)], "one who came later resumes first"
        resumed += again
        model.drain(constant)
        most_paused = max(most_paused, model.stats()["num_paused"])

    assert most_paused >= 2
    assert len(resumed) >= 2


@pytest.mark.parametrize(
    ("chunk_policy", "chunk_tokens"),
    [("first_come_first_served", 64), ("equal_progress", 0), ("equal_progress", 64)],
)
@pytest.mark.parametrize("run_ahead", [0, 1])
def test_case_g4_o4_one_giant_prompt_stops_nobody(chunk_policy, chunk_tokens, run_ahead):
    shape = CoreShape(
        num_blocks=400,
        block_tokens=16,
        max_rows=16,
        max_step_tokens=128,
        max_context_tokens=2048,
        max_requests=64,
        chunk_tokens=chunk_tokens,
        chunk_policy=chunk_policy,
        run_ahead=run_ahead,
    )
    driver = CoreDriver(shape)
    scope = driver.scope("one")
    streams = [
        driver.submit(Ask(prompt=prompt(20, first), scope=scope, max_output=150))
        for first in range(8)
    ]
    while any(not driver.requests[handle].outputs for handle in streams):
        driver.step(constant)
    giant = driver.submit(Ask(prompt=prompt(2048 - 64, 20), scope=scope, max_output=32))
    shorts: dict[int, int] = {}
    waits: dict[int, int] = {}
    gaps = dict.fromkeys(streams, 0)
    giant_steps = 0
    for step in range(100):
        if step % 10 == 0:
            driver.submit(Ask(prompt=prompt(512, 30 + step), scope=scope, max_output=4))
        if step % 20 == 5:
            short = driver.submit(Ask(prompt=prompt(16, 500 + step), scope=scope, max_output=2))
            shorts[short] = step
        told = {h: len(r.outputs) for h, r in driver.requests.items()}
        driver.step(constant)
        for short in shorts.keys() - waits.keys():
            if short in driver.ended or driver.requests[short].started:
                waits[short] = step - shorts[short]
        for handle in streams:
            if handle in driver.requests:
                grown = len(driver.requests[handle].outputs) > told[handle]
                gaps[handle] = 0 if grown else gaps[handle] + 1
                assert gaps[handle] <= 3, "a stream stands still"
        if giant in driver.requests and not driver.requests[giant].outputs:
            giant_steps += 1
    driver.run(constant)

    assert giant_steps <= math.ceil(2048 / 16) + 2
    assert len(driver.ended[giant].outputs) == 32
    assert len(waits) == len(shorts) == 5
    assert max(waits.values()) <= 10, "a short request waits for the giant one"
