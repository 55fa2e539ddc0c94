"""A turn's id makes it run once, whoever sends it, how often, at once or over a restart."""

import asyncio
from pathlib import Path

import grpc
import pytest
from antiphon.v1.session_pb2 import (
    AppendItems,
    AppendTurnRequest,
    CreateSessionRequest,
    GetSessionRequest,
    HistoryPoint,
    ListTurnsRequest,
    RunTurnRequest,
    StartTurn,
    Turn,
)

from antiphon_engine.api.errors import AntiphonError, ErrorReason
from support.fake_engine import FakeEngine
from support.server import RunningServer, details_of, running_server
from support.session_bench import (
    KEY,
    BenchSpec,
    SessionBench,
    check_turn_events,
    generate_frame,
    open_frame,
    session_bench,
    start_turn,
    text_of,
    turn_events,
)
from support.session_rows import user

NAME = "sessions/a"


async def run(server: RunningServer, start: StartTurn) -> str:
    """Runs a turn by a call of its own and returns what it said."""
    call = server.sessions.RunTurn(RunTurnRequest(session=NAME, turn=start))
    events = [event async for event in call]
    check_turn_events(events)
    assert events[-1].HasField("completed")
    return text_of(events)


async def refusal(awaitable) -> str:
    try:
        await awaitable
    except grpc.aio.AioRpcError as error:
        return str(details_of(error)["ErrorInfo"].reason)
    return ""


async def test_many_calls_and_a_stream_with_one_turn_make_one(tmp_path: Path):
    engine = FakeEngine(step_interval_s=0.002)
    start = start_turn("hi", "t1", max_tokens=20)
    async with running_server(tmp_path, engine=engine) as server:
        await server.sessions.CreateSession(CreateSessionRequest(session_id="a"))
        stream = server.sessions.Converse()
        await stream.write(open_frame())
        # A stream that opens while the turn runs tells of it for that too.
        assert (await stream.read()).HasField("opened")

        async def read() -> str:
            await stream.write(generate_frame("hi", "t1", max_tokens=20))
            await stream.done_writing()
            frames = []
            while (frame := await stream.read()) is not grpc.aio.EOF:
                frames.append(frame)
            return text_of(turn_events(frames, "t1"))

        said = await asyncio.gather(read(), *(run(server, start) for _ in range(6)))
        listed = await server.sessions.ListTurns(ListTurnsRequest(session=NAME, show_all=True))

    assert len(set(said)) == 1
    assert len(engine.requests) == 1
    assert [turn.state for turn in listed.turns] == [Turn.STATE_COMPLETED]


async def test_of_two_contents_under_one_id_one_is_taken_in(tmp_path: Path):
    engine = FakeEngine(step_interval_s=0.002)
    async with running_server(tmp_path, engine=engine) as server:
        await server.sessions.CreateSession(CreateSessionRequest(session_id="a"))
        append = AppendItems(turn_id="t1", items=[user("hi")])
        reasons = await asyncio.gather(
            *(refusal(run(server, start_turn(text, "t1"))) for text in ("hi", "ho", "hi", "ho")),
            refusal(server.sessions.AppendTurn(AppendTurnRequest(session=NAME, append=append))),
        )
        session = await server.sessions.GetSession(GetSessionRequest(name=NAME))

    assert sorted(reasons) in (
        ["", "", "ID_TAKEN", "ID_TAKEN", "ID_TAKEN"],
        ["", "ID_TAKEN", "ID_TAKEN", "ID_TAKEN", "ID_TAKEN"],
    )
    assert session.num_turns == 1
    assert len(engine.requests) <= 1


async def test_the_id_is_looked_at_before_the_head(bench: SessionBench):
    await bench.create()
    start = HistoryPoint(start={})
    first = await bench.follow(start_turn("hi", "t1", expected_head=start))
    await bench.run("more", "t2")

    again = await bench.follow(start_turn("hi", "t1", expected_head=start))

    assert text_of(again) == text_of(first)
    assert again[-1].HasField("completed")


@pytest.mark.parametrize("ends", ["completed", "failed", "superseded"])
async def test_an_id_is_kept_over_a_restart_however_its_turn_ended(spec: BenchSpec, ends: str):
    start = start_turn("hi", "t1")
    if ends == "failed":
        start.config.stop.max_output_tokens = 1_000_000
    async with session_bench(spec) as bench:
        await bench.create()
        first = await bench.follow(start)
        if ends == "superseded":
            await bench.rewind(to=HistoryPoint(start={}))
    async with session_bench(spec) as bench:
        again = await bench.follow(start)
        with pytest.raises(AntiphonError) as taken:
            await bench.run("other", "t1")
        state = (await bench.turn("t1")).state

        assert not bench.engine.requests
    assert again[-1].WhichOneof("event") == first[-1].WhichOneof("event")
    assert text_of(again) == text_of(first)
    assert taken.value.reason is ErrorReason.ID_TAKEN
    assert state == Turn.State.Value(f"STATE_{ends.upper()}")


async def test_a_rejected_turn_leaves_its_id_free(bench: SessionBench):
    await bench.create()
    bad = start_turn("hi", "t1")
    bad.config.sampling.temperature = -1
    with pytest.raises(AntiphonError):
        await bench.follow(bad)

    events = await bench.run("other", "t1")

    assert events[-1].HasField("completed")
    async with bench.registry.use(KEY) as session:
        assert not session.live_turns
