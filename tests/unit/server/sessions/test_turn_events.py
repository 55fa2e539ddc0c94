"""Turns told by calls of one direction: RunTurn again, and StreamTurnEvents from a cursor."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
import pytest_asyncio
from antiphon.v1.session_pb2 import (
    CreateSessionRequest,
    GetTurnRequest,
    RunTurnRequest,
    StartTurn,
    StreamTurnEventsRequest,
    Turn,
    TurnEvent,
)

from support.fake_engine import FakeEngine
from support.server import RunningServer, details_of, running_server
from support.session_bench import check_turn_events, start_turn, text_of

SESSION = "sessions/a"
NAME = f"{SESSION}/turns/t1"


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine(step_interval_s=0.002)


@pytest.fixture
def grace_s() -> float:
    """How long a turn waits for a caller."""
    return 0.1


@pytest_asyncio.fixture
async def server(
    tmp_path: Path, engine: FakeEngine, grace_s: float
) -> AsyncIterator[RunningServer]:
    settings = [f"sessions.reconnect_grace_s={grace_s}"]
    async with running_server(tmp_path, engine=engine, settings=settings) as running:
        await running.sessions.CreateSession(CreateSessionRequest(session_id="a"))
        yield running


def run_turn(
    server: RunningServer, start: StartTurn
) -> grpc.aio.UnaryStreamCall[RunTurnRequest, TurnEvent]:
    return server.sessions.RunTurn(RunTurnRequest(session=SESSION, turn=start), timeout=60)


def follow(
    server: RunningServer, sequence: int = 0, epoch: int = 0, name: str = NAME
) -> grpc.aio.UnaryStreamCall[StreamTurnEventsRequest, TurnEvent]:
    request = StreamTurnEventsRequest(name=name, after_sequence=sequence, epoch=epoch)
    return server.sessions.StreamTurnEvents(request, timeout=60)


async def begun(server: RunningServer, num_deltas: int = 3, **values: object) -> list[TurnEvent]:
    """What a call told of a turn before it was given up."""
    call = run_turn(server, start_turn("one", "t1", max_tokens=60, **values))
    told: list[TurnEvent] = []
    while sum(event.HasField("delta") for event in told) < num_deltas:
        told.append(await call.read())
    call.cancel()
    return told


async def ended(server: RunningServer) -> Turn:
    turn = Turn()
    while turn.state not in (Turn.STATE_COMPLETED, Turn.STATE_FAILED):
        turn = await server.sessions.GetTurn(GetTurnRequest(name=NAME))
    return turn


async def test_a_turn_is_followed_from_the_cursor_to_its_end(server: RunningServer):
    seen = await begun(server)

    rest = [event async for event in follow(server, seen[-1].sequence, seen[-1].epoch)]

    check_turn_events([*seen, *rest])
    assert text_of([*seen, *rest]) == (await ended(server)).output.text


async def test_reading_a_turn_and_then_following_it_misses_and_repeats_nothing(
    server: RunningServer,
):
    await begun(server)

    partial = await server.sessions.GetTurn(GetTurnRequest(name=NAME))
    rest = [event async for event in follow(server, partial.last_sequence, partial.epoch)]

    assert partial.state == Turn.STATE_RUNNING
    assert rest[0].first_sequence == partial.last_sequence + 1
    assert partial.output.text + text_of(rest) == (await ended(server)).output.text


async def test_several_follow_a_turn_at_once_and_all_are_told_the_same(server: RunningServer):
    await begun(server)

    told = [[event async for event in call] for call in [follow(server) for _ in range(3)]]

    for events in told:
        check_turn_events(events)
    assert len({text_of(events) for events in told}) == 1


async def test_a_cursor_of_another_epoch_is_reset(server: RunningServer):
    seen = await begun(server)

    events = [event async for event in follow(server, seen[-1].sequence, seen[-1].epoch + 1)]

    assert events[0].HasField("reset")
    check_turn_events(events[1:])


async def test_following_a_failed_turn_ends_well(server: RunningServer):
    call = run_turn(server, start_turn("x" * 300, "t1"))
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        [event async for event in call]

    events = [event async for event in follow(server)]

    assert details_of(failed.value)["ErrorInfo"].reason == "CONTEXT_LENGTH_EXCEEDED"
    check_turn_events(events)
    assert events[-1].failed.reason == "CONTEXT_LENGTH_EXCEEDED"


async def test_an_unknown_turn_is_not_found(server: RunningServer):
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await follow(server, name=f"{SESSION}/turns/nowhere").read()

    assert refused.value.code() is grpc.StatusCode.NOT_FOUND
    assert details_of(refused.value)["ErrorInfo"].reason == "TURN_NOT_FOUND"


async def test_a_turn_run_again_by_its_id_is_told_whole_and_runs_once(
    server: RunningServer, engine: FakeEngine
):
    await begun(server)

    again = [event async for event in run_turn(server, start_turn("one", "t1", max_tokens=60))]
    later = [event async for event in run_turn(server, start_turn("one", "t1", max_tokens=60))]

    for events in (again, later):
        check_turn_events(events)
        assert text_of(events) == (await ended(server)).output.text
    assert len(engine.requests) == 1


@pytest.mark.parametrize(("grace_s", "comes_back"), [(3.0, True), (0.1, False)])
async def test_a_turn_that_ends_with_its_call_waits_for_another(
    server: RunningServer, engine: FakeEngine, grace_s: float, comes_back: bool
):
    cancel = {"on_disconnect": StartTurn.ON_DISCONNECT_CANCEL}
    await begun(server, **cancel)
    engine.hold()
    if comes_back:
        call = run_turn(server, start_turn("one", "t1", max_tokens=60, **cancel))
        await call.read()
        await asyncio.sleep(grace_s + 0.2)
        engine.release()
    turn = await ended(server)

    assert (turn.usage.output_tokens == 60) is comes_back


async def test_one_who_only_follows_keeps_no_turn_alive(server: RunningServer):
    seen = await begun(server, on_disconnect=StartTurn.ON_DISCONNECT_CANCEL)

    rest = [event async for event in follow(server, seen[-1].sequence, seen[-1].epoch)]

    check_turn_events([*seen, *rest])
    assert rest[-1].completed.usage.output_tokens < 60
