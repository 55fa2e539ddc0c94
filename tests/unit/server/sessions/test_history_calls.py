"""AppendTurn, ForkSession and RewindSession over real gRPC."""

import asyncio
from pathlib import Path

import grpc
import pytest
from antiphon.v1.session_pb2 import (
    AppendItems,
    AppendTurnRequest,
    CancelTurnRequest,
    CreateSessionRequest,
    ForkSessionRequest,
    GetSessionRequest,
    HistoryPoint,
    RewindSessionRequest,
    RunTurnRequest,
    StartTurn,
    Turn,
)
from antiphon.v1.types_pb2 import GenerationConfig, StopConditions

from support.fake_engine import FakeEngine
from support.server import RunningServer, details_of, running_server
from support.session_bench import eventually
from support.session_rows import user

NAME = "sessions/a"
SHORT = GenerationConfig(stop=StopConditions(max_output_tokens=4))


async def run(server: RunningServer, turn_id: str, **values: object) -> None:
    start = StartTurn(**{"turn_id": turn_id, "items": [user("hi")], "config": SHORT} | values)
    async for _ in server.sessions.RunTurn(RunTurnRequest(session=NAME, turn=start)):
        pass


async def append(server: RunningServer, turn_id: str, text: str = "more", **values: object) -> Turn:
    items = AppendItems(turn_id=turn_id, items=[user(text)], **values)
    return await server.sessions.AppendTurn(AppendTurnRequest(session=NAME, append=items))


def reason_of(error: grpc.aio.AioRpcError) -> str:
    return str(details_of(error)["ErrorInfo"].reason)


async def test_items_are_appended_and_the_ended_turn_is_returned(tmp_path: Path):
    async with running_server(tmp_path) as server:
        await server.sessions.CreateSession(CreateSessionRequest(session_id="a"))
        turn = await append(server, "t1")
        again = await append(server, "t1")
        with pytest.raises(grpc.aio.AioRpcError) as taken:
            await append(server, "t1", "other")
        session = await server.sessions.GetSession(GetSessionRequest(name=NAME))

    assert turn.state == Turn.STATE_COMPLETED
    assert again == turn
    assert (session.head_turn, session.num_turns) == (turn.name, 1)
    assert taken.value.code() is grpc.StatusCode.ALREADY_EXISTS
    assert reason_of(taken.value) == "ID_TAKEN"


async def test_items_that_no_answer_holds_are_refused_before_they_are_appended(tmp_path: Path):
    async with running_server(tmp_path) as server:
        await server.sessions.CreateSession(CreateSessionRequest(session_id="a"))
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await append(server, "t1", "x" * (3 << 20))
        session = await server.sessions.GetSession(GetSessionRequest(name=NAME))
        kept = await append(server, "t1", "x" * ((3 << 20) - 100))

    assert reason_of(refused.value) == "RESPONSE_TOO_LARGE"
    assert session.num_turns == 0
    assert kept.state == Turn.STATE_COMPLETED


async def test_the_same_append_from_many_callers_makes_one_turn(tmp_path: Path):
    async with running_server(tmp_path) as server:
        await server.sessions.CreateSession(CreateSessionRequest(session_id="a"))
        turns = await asyncio.gather(*(append(server, "t1") for _ in range(8)))
        session = await server.sessions.GetSession(GetSessionRequest(name=NAME))

    assert {turn.name for turn in turns} == {f"{NAME}/turns/t1"}
    assert session.num_turns == 1


async def test_an_append_behind_a_running_turn_is_told_as_it_waits(tmp_path: Path):
    engine = FakeEngine()
    engine.hold()
    async with running_server(tmp_path, engine=engine) as server:
        await server.sessions.CreateSession(CreateSessionRequest(session_id="a"))
        running = asyncio.create_task(run(server, "t1"))
        await eventually(lambda: bool(engine.requests))
        turn = await append(server, "t2")
        engine.release()
        await running
        later = await append(server, "t2")

    assert turn.state == Turn.STATE_QUEUED
    assert later.state == Turn.STATE_COMPLETED


async def test_an_append_that_fails_ends_as_its_turn_does(tmp_path: Path):
    stale = HistoryPoint(start={})
    engine = FakeEngine()
    async with running_server(tmp_path, engine=engine) as server:
        await server.sessions.CreateSession(CreateSessionRequest(session_id="a"))
        await append(server, "t1")
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await append(server, "t2", expected_head=stale)
        with pytest.raises(grpc.aio.AioRpcError) as again:
            await append(server, "t2", expected_head=stale)
        with pytest.raises(grpc.aio.AioRpcError) as no_items:
            await server.sessions.AppendTurn(AppendTurnRequest(session=NAME))

    for error in (failed.value, again.value):
        assert (error.code(), reason_of(error)) == (grpc.StatusCode.ABORTED, "STALE_HEAD")
    assert "append.items" in (no_items.value.details() or "")


async def test_an_append_that_was_cancelled_ends_as_cancelled(tmp_path: Path):
    engine = FakeEngine()
    engine.hold()
    async with running_server(tmp_path, engine=engine) as server:
        await server.sessions.CreateSession(CreateSessionRequest(session_id="a"))
        running = asyncio.create_task(run(server, "t1"))
        await eventually(lambda: bool(engine.requests))
        await append(server, "t2")
        await server.sessions.CancelTurn(CancelTurnRequest(name=f"{NAME}/turns/t2"))
        with pytest.raises(grpc.aio.AioRpcError) as cancelled:
            await append(server, "t2")
        engine.release()
        await running

    assert cancelled.value.code() is grpc.StatusCode.CANCELLED


async def test_a_session_is_forked_and_rewound(tmp_path: Path):
    async with running_server(tmp_path) as server:
        await server.sessions.CreateSession(CreateSessionRequest(session_id="a"))
        for turn_id in ("t1", "t2"):
            await run(server, turn_id)
        fork = await server.sessions.ForkSession(
            ForkSessionRequest(name=NAME, turn=f"{NAME}/turns/t1")
        )
        back = await server.sessions.RewindSession(
            RewindSessionRequest(name=NAME, to=HistoryPoint(start={}))
        )
        with pytest.raises(grpc.aio.AioRpcError) as stale:
            await server.sessions.RewindSession(
                RewindSessionRequest(name=NAME, to=HistoryPoint(start={}), etag="x")
            )

    assert (fork.num_turns, fork.fork_turn) == (1, f"{NAME}/turns/t1")
    assert fork.name not in ("", NAME)
    assert back.num_turns == 0
    assert (stale.value.code(), reason_of(stale.value)) == (grpc.StatusCode.ABORTED, "STALE_HEAD")
