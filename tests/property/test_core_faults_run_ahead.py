"""Faults of other engines with steps in flight: repeated tokens, stale memory, useless rows."""

import random
from dataclasses import replace

import pytest

from antiphon_engine import _native
from support.core_driver import CoreDriver
from support.core_model import CoreModel
from support.core_runs import Conversation, ConversationRun, fake_model
from support.core_values import Ask, CoreShape, History

ROOMY = CoreShape(
    num_blocks=65,
    block_tokens=4,
    max_rows=4,
    max_step_tokens=16,
    max_context_tokens=48,
    max_requests=16,
)
TIGHT = replace(ROOMY, num_blocks=13, block_tokens=2, max_context_tokens=24, max_step_tokens=24)


def constant(_history: History, _uniform: float) -> int:
    return 1


@pytest.mark.parametrize("run_ahead", [0, 1, 2])
@pytest.mark.parametrize("pause_every", [1, 2, 3, 4, 5])
def test_fault_26_pauses_neither_lose_nor_repeat_a_token(run_ahead, pause_every):
    asks = [
        Ask(prompt=(first, 2, 3, 4, 5), max_output=12, seed=first, end_ids=frozenset([4]))
        for first in range(4)
    ]
    said = []
    for shape in (ROOMY, replace(ROOMY, run_ahead=run_ahead, pause_every=pause_every)):
        model = CoreModel(shape)
        scope = model.scope("one")
        handles = [model.submit(replace(ask, scope=scope)) for ask in asks]
        model.run(fake_model)
        model.check()
        said.append(
            [
                (*outcome, model.ended[h].uniforms)
                for outcome, h in zip(model.outcomes(handles), handles, strict=True)
            ]
        )

    assert said[0] == said[1]
    assert model.stats()["num_preemptions_total"] > 0


@pytest.mark.parametrize("run_ahead", [1, 2])
@pytest.mark.parametrize("end", ["abort", "finish", "stop"])
def test_fault_27_blocks_come_back_when_the_last_step_that_uses_them_is_committed(run_ahead, end):
    model = CoreModel(replace(TIGHT, run_ahead=run_ahead))
    scope = model.scope("one")
    ask = Ask(prompt=(1, 2, 3, 4, 5), scope=scope, max_output=16, stop_ids=frozenset([9]))
    handle = model.submit(ask)
    model.step(constant)
    for _ in range(run_ahead + 1 - len(model.in_flight)):
        model.plan()
    blocks = set(model.state().requests[handle].blocks)
    if end == "stop":
        model.execute(lambda _history, _uniform: 9)
        model.commit()
    elif end == "abort":
        model.abort(handle)
    else:
        model.finish(handle, 0)

    assert model.in_flight
    while model.in_flight:
        state = model.state()
        assert blocks <= set(state.references), "blocks of a step in flight are given back"
        if model.may_plan and len(model.requests) < 3:
            model.submit(replace(ask, prompt=(7, 7, 7)))
            model.plan()
            model.check()
            break
        model.execute(constant)
        model.commit()
    model.run(constant)
    model.check()
    assert not model.state().references


@pytest.mark.parametrize("run_ahead", [0, 1, 2])
def test_fault_31_an_admission_leaves_what_running_requests_take_next(run_ahead):
    shape = replace(TIGHT, num_blocks=9, run_ahead=run_ahead, capacity_policy="max_utilization")
    model = CoreModel(shape)
    scope = model.scope("one")
    # It holds 4 of the 8 blocks and takes a fifth soon; the other needs 4 at once.
    first = model.submit(Ask(prompt=tuple(range(8)), scope=scope, max_output=4))
    model.step(constant)

    second = model.submit(Ask(prompt=(9,) * 7, scope=scope, max_output=2))
    model.step(constant)

    assert not model.requests[second].started
    model.run(constant)
    assert model.stats()["num_preemptions_total"] == 0
    assert model.ended[first].num_pauses == 0


@pytest.mark.parametrize("run_ahead", [0, 1, 2])
@pytest.mark.parametrize("max_output", [1, 2, 5])
def test_fault_32_no_row_is_launched_behind_the_last_token_by_length(run_ahead, max_output):
    model = CoreModel(replace(ROOMY, run_ahead=run_ahead))
    handle = model.submit(
        Ask(prompt=tuple(range(20)), scope=model.scope("one"), max_output=max_output)
    )

    model.run(constant)

    num_chunks = 2  # of 16 and 4 tokens
    assert model.ended[handle].num_rows == num_chunks + max_output - 1
    assert model.stats()["step"] == num_chunks + max_output - 1


@pytest.mark.parametrize("run_ahead", [0, 1, 2])
def test_fault_32_nor_behind_the_last_token_of_a_full_context(run_ahead):
    model = CoreModel(replace(ROOMY, run_ahead=run_ahead, max_context_tokens=20))
    handle = model.submit(Ask(prompt=(1,) * 15, scope=model.scope("one"), max_output=100))

    model.run(constant)

    assert model.ended[handle].finish == _native.FINISH_CONTEXT_FULL
    assert model.ended[handle].num_rows == len(model.ended[handle].outputs) == 5


@pytest.mark.parametrize("num_buffer_sets", [3, 4])
@pytest.mark.parametrize("seed", range(6))
def test_fault_33_tenants_never_read_each_other_through_the_host(num_buffer_sets, seed):
    # Copies of a kind come in any order, steps late; the executor checks every read and that the
    # arrays of a step in flight stay as they were planned.
    shape = replace(
        TIGHT,
        run_ahead=2,
        num_buffer_sets=num_buffer_sets,
        num_host_blocks=24,
        capacity_policy="max_utilization",
    )
    driver, rng = CoreDriver(shape, seed=seed), random.Random(seed)
    ask = Ask(prompt=(1, 2, 3, 4, 5, 6, 7), max_output=6)
    for turn in range(12):
        for tenant in ("one", "two", "three"):
            conversation = Conversation(ask=replace(ask, seed=turn), turns=((1, 2), (3,)))
            run = ConversationRun(driver, [conversation] * 2, tenant=tenant)
            run.run(rng)

    stats = driver.stats()
    assert stats["num_offloads_total"] > 0
    assert stats["num_onloads_total"] > 0
    driver.core.check_invariants()


def test_fault_33_nothing_is_reused_from_the_host_before_it_has_arrived_there():
    shape = replace(ROOMY, num_blocks=17, num_host_blocks=16, run_ahead=1)
    model = CoreModel(shape)
    scope = model.scope("one")
    asks = [Ask(prompt=(first, *range(100, 116)), scope=scope, max_output=1) for first in range(4)]
    for ask in asks[:3]:
        model.submit(ask)
        model.run(constant)
    model.submit(asks[3])
    model.plan()
    (step,) = model.in_flight
    assert step.offloaded_to()

    # The model checks that no copy reads a host block that a step in flight writes.
    again = model.submit(asks[0])
    model.plan()
    model.check()

    on_device = 16 - 4 * len(step.offloaded_to())
    assert model.requests[again].reused in (None, max(on_device, 0))
    model.run(constant)
    assert model.ended[again].outputs == [1]


def test_fault_33_buffers_of_a_step_in_flight_are_not_planned_into():
    model = CoreModel(replace(ROOMY, run_ahead=1))
    model.submit(Ask(prompt=(1, 2, 3), scope=model.scope("one"), max_output=8))
    model.plan()

    with pytest.raises(_native.InvariantError, match="in flight"):
        model.core.plan(0, 0)


def test_no_more_steps_are_in_flight_than_were_allowed():
    model = CoreModel(replace(ROOMY, run_ahead=1))
    model.submit(Ask(prompt=(1, 2, 3), scope=model.scope("one"), max_output=8))
    model.plan()
    model.plan()

    with pytest.raises(_native.InvariantError, match="in flight"):
        model.core.plan(2, 0)


@pytest.mark.parametrize("run_ahead", [0, 2])
def test_fault_39_pads_go_to_scratch_and_no_request_ever_has_it(run_ahead):
    # With the pool full, rows are padded up to the largest batch as a captured graph would be.
    shape = replace(TIGHT, run_ahead=run_ahead, num_buffer_sets=3)
    model = CoreModel(shape)
    scope = model.scope("one")
    for first in range(6):
        model.submit(Ask(prompt=(first, 2, 3, 4, 5), scope=scope, max_output=8))
    scratch_cells = set(range(shape.block_tokens))
    fullest = 0
    while model.requests:
        model.step(fake_model)
        fullest = max(fullest, model.stats()["num_blocks_used"])
        for step in model.in_flight:
            num_tokens = int(step.buffers["header"][_native.HEADER_NUM_TOKENS])
            cells = step.buffers["slot_mapping"][:num_tokens]
            assert cells.min(initial=shape.block_tokens) >= shape.block_tokens
            assert not scratch_cells & {int(cell) for cell in cells}
        assert all(0 not in r.blocks for r in model.state().requests.values())
    model.drain(fake_model)

    assert fullest == shape.num_blocks - 1
    assert model.ghost.cells(_native.TIER_DEVICE, 0) == [None] * shape.block_tokens
