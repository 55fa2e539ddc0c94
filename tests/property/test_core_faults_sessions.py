"""Faults of other engines around sessions: pinned memory, growing cost, ends at a bad moment."""

from dataclasses import replace

import pytest

from antiphon_engine import _native
from support.core_driver import CoreDriver
from support.core_model import CoreModel
from support.core_runs import fake_model
from support.core_values import Ask, CoreShape, History, ModelRequest

ROOMY = CoreShape(
    num_blocks=65,
    block_tokens=4,
    max_rows=4,
    max_step_tokens=16,
    max_context_tokens=64,
    max_requests=64,
)


def constant(_history: History, _uniform: float) -> int:
    return 1


def next_turn(request: ModelRequest, *added: int) -> Ask:
    return replace(request.ask, prompt=(*request.tokens, *added))


@pytest.mark.parametrize("policy", _native.CAPACITY_POLICIES)
@pytest.mark.parametrize("run_ahead", [0, 1])
@pytest.mark.parametrize("num_host_blocks", [0, 16])
def test_fault_45_idle_sessions_pin_nothing(policy, run_ahead, num_host_blocks):
    shape = replace(
        ROOMY,
        num_blocks=17,
        capacity_policy=policy,
        run_ahead=run_ahead,
        num_host_blocks=num_host_blocks,
    )
    model = CoreModel(shape)
    scope = model.scope("one")
    handles = []
    for session in range(1, 13):
        ask = Ask(
            prompt=(session, *range(100, 110)),
            scope=scope,
            max_output=6,
            session=session,
            retention_priority=100,
        )
        handles.append(model.submit(ask))
        model.run(constant)
    kept_blocks = sum(len(model.ended[handle].tokens) // 4 for handle in handles)

    again = [model.submit(next_turn(model.ended[handle], 5, 6)) for handle in handles]
    model.run(constant)
    model.check()

    assert kept_blocks > 2 * 16
    assert [len(model.ended[handle].outputs) for handle in again] == [6] * 12
    close_all(model, range(1, 13))


def test_fault_46_a_turn_costs_the_same_after_five_hundred():
    shape = CoreShape(
        num_blocks=2000,
        block_tokens=16,
        max_rows=2,
        max_step_tokens=64,
        max_context_tokens=8000,
    )
    driver = CoreDriver(shape)
    scope = driver.scope("one")
    ask = Ask(prompt=(1, 2, 3, 4, 5), scope=scope, max_output=4, session=1)
    costs = []
    for turn in range(500):
        handle = driver.submit(ask)
        num_steps = num_tokens = num_deltas = num_copies = 0
        while driver.requests:
            driver.plan()
            header = driver.in_flight[-1].buffers["header"]
            num_steps += 1
            num_tokens += int(header[_native.HEADER_NUM_TOKENS])
            num_deltas += int(header[_native.HEADER_NUM_TABLE_DELTAS])
            num_copies += int(header[_native.HEADER_NUM_COPIES])
            driver.drain(fake_model)
        request = driver.ended[handle]
        # Its slot is new, so that the whole table is told once; beyond that, only what is new.
        costs.append((num_steps, num_tokens, num_copies, num_deltas - len(request.tokens) // 16))
        ask = next_turn(request, turn % 3, 2)

    num_tokens = [cost[1] for cost in costs]
    assert len(driver.ended[handle].tokens) > 2900
    assert max(num_tokens[1:]) <= 2 + 4 + 1, "what was computed before is computed again"
    assert {cost[0] for cost in costs} == {4}
    assert max(cost[2] for cost in costs) <= 1
    assert max(cost[3] for cost in costs) <= 2


@pytest.mark.parametrize("run_ahead", [0, 1, 2])
@pytest.mark.parametrize("num_steps", range(9))
@pytest.mark.parametrize("end", ["run on", "abort", "finish"])
def test_fault_47_a_session_closes_at_any_moment_of_its_turn(run_ahead, num_steps, end):
    # 0 steps: queued; 1, 2: a prompt of three chunks; then it generates; at last it has ended.
    shape = replace(ROOMY, run_ahead=run_ahead, max_step_tokens=8, num_kv_events=64)
    model = CoreModel(shape)
    scope = model.scope("one")
    ask = Ask(prompt=tuple(range(20)), scope=scope, max_output=4, session=5)
    handle = model.submit(ask)
    for _ in range(num_steps):
        if model.requests:
            model.step(constant)

    model.core.close_session(5)
    model.check()
    if handle in model.requests and end != "run on":
        model.abort(handle) if end == "abort" else model.finish(handle, 1)
    model.run(constant)
    model.check()

    assert not model.core.rewind_session(5, 8), "a turn that ended late opens its session again"
    assert not model.core.close_session(5)
    again = model.submit(replace(ask, session=6))
    model.run(constant)
    assert model.ended[again].outputs == [1, 1, 1, 1]
    model.core.close_session(6)
    model.events.catch_up()
    model.check_empty()


def test_case_g3_o6_many_open_sessions_leave_the_core_usable():
    shape = CoreShape(
        num_blocks=65,
        block_tokens=4,
        max_rows=8,
        max_step_tokens=64,
        max_context_tokens=64,
        max_requests=64,
    )
    model = CoreModel(shape)
    scope = model.scope("one")
    tokens: dict[int, list[int]] = {}

    def turn(session: int, prompt: list[int]) -> int:
        ask = Ask(
            prompt=tuple(prompt),
            scope=scope,
            max_output=4,
            seed=session,
            session=session,
            retention_priority=100,
            retention_us=1_000_000,
        )
        return model.submit(ask)

    for number in range(2):
        handles = {
            session: turn(session, [*tokens.get(session, []), session, *range(50, 57 - number)])
            for session in range(1, 41)
        }
        model.run(fake_model)
        for session, handle in handles.items():
            tokens[session] = model.ended[handle].tokens
    stateless = [
        model.submit(Ask(prompt=(1000 + i, *range(30)), scope=scope, max_output=4))
        for i in range(10)
    ]
    model.run(fake_model)
    assert all(len(model.ended[handle].outputs) == 4 for handle in stateless)

    busy = {session: turn(session, [*tokens[session], 9]) for session in range(1, 21)}
    model.step(fake_model)
    for session, handle in busy.items():
        model.core.close_session(session)
        if session % 2:
            model.abort(handle)
    model.run(fake_model)
    model.now_us += 10_000_000
    resumed = {session: turn(session, [*tokens[session], 9]) for session in range(21, 41)}
    model.run(fake_model)

    alone = CoreDriver(replace(shape, num_blocks=1025, prefix_reuse=False))
    scope = alone.scope("one")
    for session, handle in {**busy, **resumed}.items():
        if session in busy and session % 2:
            continue
        request = model.ended[handle]
        lone = alone.submit(replace(request.ask, scope=scope, session=0))
        alone.run(fake_model)
        assert alone.ended[lone].outputs == request.outputs
    close_all(model, range(1, 41))


def close_all(model: CoreModel, sessions: range) -> None:
    """I25: with all closed, nothing is held."""
    for session in sessions:
        model.core.close_session(session)
    model.check()
    model.check_empty()
