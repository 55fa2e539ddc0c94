"""Sessions over real gRPC, with the real text side and an engine that says what it is told."""

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

import grpc
import pytest
from antiphon.v1.session_pb2 import (
    CancelTurnRequest,
    ConverseRequest,
    ConverseResponse,
    CreateSessionRequest,
    DeleteSessionRequest,
    GetSessionRequest,
    GetTurnRequest,
    OpenSession,
    RunTurnRequest,
    Session,
    StartTurn,
    Turn,
    TurnEvent,
)
from antiphon.v1.types_pb2 import (
    GenerationConfig,
    Item,
)

from support.fake_engine import FakeEngine
from support.server import RunningServer, details_of, running_server
from support.session_bench import check_turn_events, generate_frame, text_of, turn_events
from support.session_rows import user
from support.turn_runs import events_of_turn, greedy, output_of, prompt_of

ENDS_WITHIN_S = 10.0
"""How soon a call ends behind its last answer; far more than it takes, since machines differ."""


def endless(max_tokens: int) -> GenerationConfig:
    """A config under which no drawn token ends the answer early."""
    long = greedy(max_tokens, seed=1)
    long.stop.ignore_eos = True
    return long


async def run(
    server: RunningServer, name: str, items: Sequence[Item], turn_id: str = ""
) -> list[TurnEvent]:
    start = StartTurn(turn_id=turn_id, items=items, config=greedy(6, seed=1))
    events = await events_of_turn(server, name, start)
    check_turn_events(events)
    return events


async def opened(server: RunningServer, *frames: ConverseRequest):
    call = server.sessions.Converse()
    await call.write(ConverseRequest(open=OpenSession(create=CreateSessionRequest(session_id="a"))))
    for frame in frames:
        await call.write(frame)
    return call


@pytest.mark.parametrize("num_turns", [0, 1, 2])
async def test_turns_are_answered_in_full_behind_a_half_close(tmp_path: Path, num_turns: int):
    async with running_server(tmp_path) as server:
        ids = [f"t{number}" for number in range(num_turns)]
        call = await opened(server, *(generate_frame("hi", turn_id) for turn_id in ids))
        await call.done_writing()
        frames, last_s = [], time.monotonic()
        async for frame in call:
            frames.append(frame)
            last_s = time.monotonic()
        ended_s = time.monotonic()

        assert await call.code() is grpc.StatusCode.OK
        assert ended_s - last_s < ENDS_WITHIN_S
        for turn_id in ids:
            turn = await server.sessions.GetTurn(GetTurnRequest(name=f"sessions/a/turns/{turn_id}"))
            assert text_of(turn_events(frames, turn_id)) == turn.output.text
            assert turn.state == Turn.STATE_COMPLETED


async def test_half_close_with_nothing_said_ends_with_ok(tmp_path: Path):
    async with running_server(tmp_path) as server:
        call = server.sessions.Converse()
        await call.done_writing()

        assert [frame async for frame in call] == []
        assert await call.code() is grpc.StatusCode.OK


async def test_a_stream_may_idle_and_then_go_on(tmp_path: Path):
    async with running_server(tmp_path) as server:
        call = await opened(server, generate_frame("hi", "t1"))
        frames = [await call.read() for _ in range(4)]
        await asyncio.sleep(0.3)
        await call.write(generate_frame("more", "t2"))
        await call.done_writing()
        await read_into(frames, call)

        assert frames[-1].turn_event.turn_id == "t2"
        assert frames[-1].turn_event.HasField("completed")


async def test_a_refused_open_ends_both_directions_with_details(tmp_path: Path):
    async with running_server(tmp_path) as server:
        call = server.sessions.Converse()
        await call.write(ConverseRequest(open=OpenSession(name="sessions/nowhere")))
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call.read()

        assert refused.value.code() is grpc.StatusCode.NOT_FOUND
        details = details_of(refused.value)
        assert details["ErrorInfo"].reason == "SESSION_NOT_FOUND"
        assert details["ResourceInfo"].resource_name == "sessions/nowhere"


async def test_a_cancelled_call_lets_its_turn_go_on_and_frees_the_session(tmp_path: Path):
    engine = FakeEngine(step_interval_s=0.002)
    async with running_server(tmp_path, engine=engine) as server:
        call = await opened(server, generate_frame("hi", "t1", config=endless(40)))
        while not (await call.read()).turn_event.HasField("delta"):
            pass
        call.cancel()
        name = "sessions/a/turns/t1"
        turn = await ended_turn(server, name)
        call = server.sessions.Converse()
        await call.write(ConverseRequest(open=OpenSession(name="sessions/a")))
        reopened = await call.read()
        await call.done_writing()

        assert turn.state == Turn.STATE_COMPLETED
        assert turn.usage.output_tokens == 40
        assert reopened.opened.session.head_turn == name


@pytest.mark.parametrize(
    ("on_disconnect", "whole"),
    [(StartTurn.ON_DISCONNECT_CANCEL, False), (StartTurn.ON_DISCONNECT_CONTINUE, True)],
)
async def test_a_run_turn_that_is_given_up_does_as_it_asked(
    tmp_path: Path, on_disconnect: int, whole: bool
):
    engine = FakeEngine(step_interval_s=0.002)
    settings = ["sessions.reconnect_grace_s=0"]
    async with running_server(tmp_path, engine=engine, settings=settings) as server:
        await server.sessions.CreateSession(CreateSessionRequest(session_id="a"))
        start = StartTurn(
            turn_id="t1", items=[user("hi")], config=endless(100), on_disconnect=on_disconnect
        )
        call = server.sessions.RunTurn(RunTurnRequest(session="sessions/a", turn=start))
        while not (await call.read()).HasField("delta"):
            pass
        call.cancel()
        turn = await ended_turn(server, "sessions/a/turns/t1")

        assert turn.state == Turn.STATE_COMPLETED
        assert (turn.usage.output_tokens == 100) is whole


async def test_cancel_turn_answers_with_the_ended_turn(tmp_path: Path):
    engine = FakeEngine(step_interval_s=0.002)
    async with running_server(tmp_path, engine=engine) as server:
        call = await opened(server, generate_frame("hi", "t1", config=endless(200)))
        while not (await call.read()).turn_event.HasField("delta"):
            pass
        request = CancelTurnRequest(name="sessions/a/turns/t1")
        turn = await server.sessions.CancelTurn(request)
        again = await server.sessions.CancelTurn(request)
        await call.done_writing()

        assert turn == again
        assert turn.state == Turn.STATE_COMPLETED
        assert 0 < turn.usage.output_tokens < 200


async def test_a_run_turn_whose_turn_is_discarded_ends_as_cancelled(tmp_path: Path):
    engine = FakeEngine()
    engine.hold()
    async with running_server(tmp_path, engine=engine) as server:
        await server.sessions.CreateSession(CreateSessionRequest(session_id="a"))
        start = StartTurn(turn_id="t1", items=[user("hi")])
        call = server.sessions.RunTurn(RunTurnRequest(session="sessions/a", turn=start))
        assert (await call.read()).HasField("accepted")
        await server.sessions.CancelTurn(CancelTurnRequest(name="sessions/a/turns/t1"))
        events: list[TurnEvent] = []
        with pytest.raises(grpc.aio.AioRpcError):
            await read_into(events, call)

        assert events[-1].failed.code == grpc.StatusCode.CANCELLED.value[0]
        assert await call.code() is grpc.StatusCode.CANCELLED


async def test_a_restart_of_the_server_keeps_sessions_and_their_ids(tmp_path: Path):
    async with running_server(tmp_path) as server:
        session = await server.sessions.CreateSession(
            CreateSessionRequest(session=Session(instructions="Be brief."))
        )
        first = await run(server, session.name, [user("Hi")], "t1")
    async with running_server(tmp_path) as server:
        kept = await server.sessions.GetSession(GetSessionRequest(name=session.name))
        replayed = await run(server, session.name, [user("Hi")], "t1")
        second = await run(server, session.name, [user("More")])

    context = prompt_of(first) + output_of(first)
    assert kept.num_turns == 1
    assert kept.residency.context_tokens == len(context)
    assert (prompt_of(replayed), output_of(replayed)) == (prompt_of(first), output_of(first))
    assert prompt_of(second)[: len(context)] == context


async def test_a_busy_session_is_deleted_cleanly(tmp_path: Path):
    engine = FakeEngine(step_interval_s=0.002)
    async with running_server(tmp_path, engine=engine) as server:
        call = await opened(server, generate_frame("hi", "t1", config=endless(200)))
        while not (await call.read()).turn_event.HasField("delta"):
            pass
        await server.sessions.DeleteSession(DeleteSessionRequest(name="sessions/a"))
        frames: list[ConverseResponse] = []
        with pytest.raises(grpc.aio.AioRpcError) as gone:
            await read_into(frames, call)

        assert gone.value.code() is grpc.StatusCode.NOT_FOUND
        assert frames[-1].HasField("go_away")
        assert frames[-2].turn_event.HasField("completed")
        assert engine.num_running == engine.num_waiting == 0


async def read_into(frames: list, call) -> None:
    """Reads to the end of a call that was read from before."""
    while (frame := await call.read()) is not grpc.aio.EOF:
        frames.append(frame)


async def ended_turn(server: RunningServer, name: str) -> Turn:
    """Waits until a turn has ended."""
    async with asyncio.timeout(60):
        while True:
            turn = await server.sessions.GetTurn(GetTurnRequest(name=name))
            if turn.state not in (Turn.STATE_QUEUED, Turn.STATE_RUNNING):
                return turn
            await asyncio.sleep(0.01)
