"""Half-closing behind any frame that a stream may begin with or send: what is pending is told."""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import grpc
import pytest
import pytest_asyncio
from antiphon.v1.session_pb2 import (
    AppendItems,
    CancelRequest,
    ConverseRequest,
    ConverseResponse,
    CreateSessionRequest,
    GetTurnRequest,
    OpenSession,
    StartTurn,
    TurnCursor,
    TurnEvent,
)

from support.answers import LIMIT_S
from support.fake_engine import FakeEngine
from support.server import RunningServer, running_server
from support.session_bench import check_turn_events, start_turn, text_of
from support.session_rows import user

NAME = "sessions/s"
APPEND = ConverseRequest(append=AppendItems(turn_id="appended", items=[user("more")]))


@pytest_asyncio.fixture
async def server(tmp_path: Path) -> AsyncIterator[RunningServer]:
    engine = FakeEngine(step_interval_s=0.002)
    async with running_server(tmp_path, engine=engine) as running:
        await running.sessions.CreateSession(CreateSessionRequest(session_id="s"))
        yield running


def turn(turn_id: str) -> StartTurn:
    return start_turn(f"for {turn_id}", turn_id, max_tokens=60)


def opening(**values: object) -> ConverseRequest:
    return ConverseRequest(open=OpenSession(name=NAME, **values))


async def told(server: RunningServer, *frames: ConverseRequest) -> list[ConverseResponse]:
    """All that is told behind frames and an immediate half-close; the call has to end well."""

    async def iterate() -> AsyncIterator[ConverseRequest]:
        for frame in frames:
            yield frame

    call = server.sessions.Converse(iterate(), timeout=LIMIT_S)
    responses = [response async for response in call]
    assert await call.code() is grpc.StatusCode.OK
    assert responses[0].HasField("opened")
    return responses[1:]


def events_in(responses: Sequence[ConverseResponse], turn_id: str) -> list[TurnEvent]:
    return [r.turn_event for r in responses if r.turn_event.turn_id == turn_id]


async def broken(server: RunningServer, turn_id: str) -> list[TurnEvent]:
    """What a stream told of a turn before it broke in the middle."""
    call = server.sessions.Converse(timeout=LIMIT_S)
    await call.write(opening(attachment_id="mine"))
    await call.write(ConverseRequest(generate=turn(turn_id)))
    await call.read()
    events = [(await call.read()).turn_event]
    while sum(event.HasField("delta") for event in events) < 3:
        events.append((await call.read()).turn_event)
    call.cancel()
    return events


def cursor_of(event: TurnEvent) -> TurnCursor:
    return TurnCursor(turn_id=event.turn_id, epoch=event.epoch, sequence=event.sequence)


async def output_of(server: RunningServer, turn_id: str) -> str:
    name = f"{NAME}/turns/{turn_id}"
    return (await server.sessions.GetTurn(GetTurnRequest(name=name))).output.text


async def test_a_resumed_turn_is_told_to_its_end(server: RunningServer) -> None:
    seen = await broken(server, "t1")

    # The broken call may not have been noticed yet, so the caller says that it is the same.
    rest = await told(server, opening(resume=[cursor_of(seen[-1])], attachment_id="mine"))

    events = [*seen, *events_in(rest, "t1")]
    check_turn_events(events)
    assert text_of(events) == await output_of(server, "t1")


@pytest.mark.parametrize("max_unacked_events", [0, 1, 2])
async def test_nothing_waits_for_acknowledgements_that_can_not_come(
    server: RunningServer, max_unacked_events: int
) -> None:
    responses = await told(
        server,
        opening(max_unacked_events=max_unacked_events),
        ConverseRequest(generate=turn("t1")),
        APPEND,
        ConverseRequest(generate=turn("t2")),
    )

    for turn_id in ("t1", "appended", "t2"):
        events = events_in(responses, turn_id)
        check_turn_events(events)
        assert text_of(events) == await output_of(server, turn_id)


async def test_one_who_watches_is_told_of_what_has_not_ended(server: RunningServer) -> None:
    await broken(server, "t1")

    responses = await told(server, opening(watch_only=True))

    events = events_in(responses, "t1")
    check_turn_events(events)
    assert text_of(events) == await output_of(server, "t1")


async def test_a_turn_taken_over_is_told_to_its_end(server: RunningServer) -> None:
    call = server.sessions.Converse(timeout=LIMIT_S)
    await call.write(opening())
    await call.write(ConverseRequest(generate=turn("t1")))
    while not (await call.read()).turn_event.HasField("delta"):
        pass

    responses = await told(server, opening(take_over=True))

    check_turn_events(events_in(responses, "t1"))
    call.cancel()


async def test_a_cancelled_turn_and_those_behind_it_are_told(server: RunningServer) -> None:
    responses = await told(
        server,
        opening(),
        ConverseRequest(generate=turn("t1")),
        ConverseRequest(cancel=CancelRequest(turn_id="t1")),
        ConverseRequest(generate=turn("t2")),
        ConverseRequest(frame_id="wrong", ack=TurnCursor(turn_id="t1")),
    )

    for turn_id in ("t1", "t2"):
        check_turn_events(events_in(responses, turn_id))
    rejected = [r.rejected.frame_id for r in responses if r.HasField("rejected")]
    assert rejected == ["wrong"]


async def test_half_close_behind_turns_that_are_over_ends_at_once(server: RunningServer) -> None:
    first = await told(server, opening(), ConverseRequest(generate=turn("t1")))
    end = events_in(first, "t1")[-1]

    assert await told(server, opening(resume=[cursor_of(end)])) == []
