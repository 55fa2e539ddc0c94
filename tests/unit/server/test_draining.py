"""A server that is told to end: nothing new, what runs goes on, and what is left is kept."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
from antiphon.v1.admin_pb2 import DrainRequest, DrainResponse, GetServerInfoRequest
from antiphon.v1.inference_pb2 import GenerateRequest
from antiphon.v1.session_pb2 import (
    ConverseRequest,
    ConverseResponse,
    CreateSessionRequest,
    GetTurnRequest,
    OpenSession,
    RunTurnRequest,
    StartTurn,
    StreamTurnEventsRequest,
    Turn,
)
from antiphon.v1.types_pb2 import FinishReason, GenerationConfig, GoAway, Prompt, StopConditions
from google.protobuf.duration_pb2 import Duration
from grpc_health.v1 import health_pb2

from support.fake_engine import FakeEngine
from support.multiplexing import Multiplexer
from support.server import RunningServer, details_of, running_server
from support.session_rows import user

LONG = GenerationConfig(stop=StopConditions(max_output_tokens=200, ignore_eos=True))
REQUEST = GenerateRequest(prompt=Prompt(text="go on"), config=LONG)
LIMIT = Duration(seconds=60)
AT_ONCE = Duration(seconds=0)


@dataclass
class Setup:
    running: RunningServer
    engine: FakeEngine

    async def start_turn(self, session_id: str, turn_id: str = "t") -> grpc.aio.UnaryStreamCall:
        """Starts a turn in a session of its own; returns the call behind its first event."""
        sessions = self.running.sessions
        await sessions.CreateSession(CreateSessionRequest(session_id=session_id))
        turn = StartTurn(turn_id=turn_id, items=[user("hi")], config=LONG)
        call = sessions.RunTurn(RunTurnRequest(session=f"sessions/{session_id}", turn=turn))
        assert (await call.read()).HasField("accepted")
        return call

    async def say_a_little(self, num_requests: int) -> None:
        """Lets each request say three tokens."""
        await until(lambda: self.engine.num_waiting == num_requests)
        self.engine.step(3)

    def drain(self, limit: Duration = LIMIT) -> "asyncio.Future[DrainResponse]":
        return asyncio.ensure_future(self.running.admin.Drain(DrainRequest(limit=limit)))

    async def until_draining(self) -> None:
        await until(lambda: self.running.server.draining.begun)


@asynccontextmanager
async def serving(directory: Path) -> AsyncIterator[Setup]:
    engine = FakeEngine()
    engine.hold()
    async with running_server(directory, engine=engine) as running:
        yield Setup(running, engine)
        engine.release()


@pytest.fixture
async def setup(tmp_path: Path) -> AsyncIterator[Setup]:
    async with serving(tmp_path) as made:
        yield made


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - polls what another party changes
            await asyncio.sleep(0.002)


async def reason_of(call: Awaitable[object]) -> str:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    details = details_of(caught.value)
    assert "RetryInfo" in details
    return str(details["ErrorInfo"].reason)


async def read_to_end(call: grpc.aio.UnaryStreamCall) -> list[object]:
    events = []
    async with asyncio.timeout(60):
        while (event := await call.read()) is not grpc.aio.EOF:
            events.append(event)
    return events


async def open_conversation(setup: Setup, name: str) -> grpc.aio.StreamStreamCall:
    call = setup.running.sessions.Converse()
    await call.write(ConverseRequest(open=OpenSession(name=name)))
    assert (await call.read()).HasField("opened")
    return call


async def test_server_without_work_is_drained_at_once_and_goes_on_to_refuse(setup: Setup) -> None:
    answer = await setup.drain()

    assert answer == DrainResponse()
    assert await reason_of(setup.running.inference.Generate(REQUEST)) == "DRAINING"
    create = setup.running.sessions.CreateSession(CreateSessionRequest())
    assert await reason_of(create) == "DRAINING"
    info = await setup.running.admin.GetServerInfo(GetServerInfoRequest())
    assert info.draining
    health = await setup.running.health.Check(health_pb2.HealthCheckRequest())
    assert health.status == health_pb2.HealthCheckResponse.NOT_SERVING


async def test_what_runs_goes_on_to_its_end_and_is_counted(setup: Setup) -> None:
    attached, left = await setup.start_turn("attached"), await setup.start_turn("left")
    left.cancel()
    alone = setup.running.inference.StreamGenerate(REQUEST)
    many = Multiplexer(setup.running.inference)
    many.read_on()
    await many.start(1, REQUEST)
    await setup.say_a_little(4)

    answer = setup.drain()
    await setup.until_draining()
    assert not answer.done()
    setup.engine.release()

    drained = await answer
    assert (drained.num_finished, drained.num_cancelled) == (2, 0)
    assert (await read_to_end(attached))[-1].HasField("completed")  # type: ignore[attr-defined]
    assert (await read_to_end(alone))[-1].HasField("completed")  # type: ignore[attr-defined]
    assert await many.end() is grpc.StatusCode.UNAVAILABLE
    assert many.told[1].kinds[-1] == "completed"
    assert [away.reason for away in many.go_aways] == [GoAway.REASON_DRAINING]


async def test_streams_are_told_how_long_they_live_and_take_nothing_new(setup: Setup) -> None:
    await setup.start_turn("s")
    call = await open_conversation(setup, "sessions/s")
    many = Multiplexer(setup.running.inference)
    many.read_on()
    await many.start(1, REQUEST)
    await setup.say_a_little(2)

    answer = setup.drain(Duration(seconds=600))
    await many.until(lambda seen: bool(seen.go_aways))
    await many.start(2, REQUEST)
    await many.until_ended(2)
    frames: list[ConverseResponse] = []
    while not frames or not frames[-1].HasField("go_away"):
        frames.append(await call.read())
    await call.write(ConverseRequest(generate=StartTurn(turn_id="late", items=[user("hi")])))
    while not frames[-1].HasField("rejected"):
        frames.append(await call.read())
    setup.engine.release()
    await answer

    assert many.told[2].reasons == ["DRAINING"]
    assert frames[-1].rejected.failure.reason == "DRAINING"
    (away,) = [frame.go_away for frame in frames if frame.HasField("go_away")]
    assert away.reason == GoAway.REASON_DRAINING
    assert 500 < away.time_left.seconds <= 600
    assert 500 < many.go_aways[0].time_left.seconds <= 600


async def test_health_turns_before_streams_are_sent_away(setup: Setup) -> None:
    order: list[str] = []
    setup.running.server.supervision.on_change(lambda: order.append("health"))
    many = Multiplexer(setup.running.inference)
    many.read_on()
    await many.start(1, REQUEST)
    await setup.say_a_little(1)

    answer = setup.drain()
    await many.until(lambda seen: bool(seen.go_aways))
    order.append("go_away")
    setup.engine.release()
    await answer

    assert order[:2] == ["health", "go_away"]


async def test_turns_cut_at_the_limit_keep_their_output_over_a_restart(tmp_path: Path) -> None:
    async with serving(tmp_path) as setup:
        calls = [await setup.start_turn("attached"), await setup.start_turn("left")]
        calls[1].cancel()
        await setup.say_a_little(2)

        answer = await setup.drain(AT_ONCE)

        assert (answer.num_finished, answer.num_cancelled) == (0, 2)
        last = (await read_to_end(calls[0]))[-1]
        assert last.completed.finish_reason == FinishReason.FINISH_REASON_CANCELLED  # type: ignore[attr-defined]
        said = setup.engine.requests[0].outputs[0].token_ids
    async with serving(tmp_path) as setup:
        for session in ("attached", "left"):
            name = f"sessions/{session}/turns/t"
            turn = await setup.running.sessions.GetTurn(GetTurnRequest(name=name))
            assert turn.state == Turn.STATE_COMPLETED
            assert turn.output.finish_reason == FinishReason.FINISH_REASON_CANCELLED
            assert turn.usage.output_tokens == len(said) == 3
            assert turn.output.text


async def test_turns_that_wait_behind_another_never_begin(setup: Setup) -> None:
    await setup.start_turn("s")
    call = await open_conversation(setup, "sessions/s")
    await call.write(
        ConverseRequest(generate=StartTurn(turn_id="next", items=[user("hi")], config=LONG))
    )
    frame = ConverseResponse()
    while frame.turn_event.turn_id != "next":
        frame = await call.read()
    await setup.say_a_little(1)

    answer = await setup.drain(AT_ONCE)

    assert answer.num_cancelled == 2
    assert len(setup.engine.requests) == 1


async def test_requests_without_a_session_fail_at_the_limit_to_be_sent_elsewhere(
    setup: Setup,
) -> None:
    unary = setup.running.inference.Generate(REQUEST)
    stream = setup.running.inference.StreamGenerate(REQUEST)
    many = Multiplexer(setup.running.inference)
    many.read_on()
    await many.start(1, REQUEST)
    await setup.say_a_little(3)

    await setup.drain(AT_ONCE)

    assert await reason_of(unary) == "DRAINING"
    assert await reason_of(read_to_end(stream)) == "DRAINING"
    assert await many.end() is grpc.StatusCode.UNAVAILABLE
    assert many.told[1].reasons == ["DRAINING"]
    await until(lambda: setup.engine.num_running == 0)
    assert setup.running.server.supervision.num_calls == 0


async def test_second_drain_joins_the_first_and_may_bring_the_limit_forward(setup: Setup) -> None:
    await setup.start_turn("s")
    await setup.say_a_little(1)
    first = setup.drain()
    later = setup.drain(Duration(seconds=3600))
    await setup.until_draining()

    answers = [await setup.drain(AT_ONCE), await first, await later]

    assert answers == [DrainResponse(num_cancelled=1)] * 3
    assert await setup.drain(AT_ONCE) == answers[0]


async def test_drain_goes_on_without_the_one_who_asked(setup: Setup) -> None:
    await setup.start_turn("s")
    await setup.say_a_little(1)
    call = setup.running.admin.Drain(DrainRequest(limit=LIMIT))
    await setup.until_draining()

    call.cancel()
    setup.engine.release()

    assert await setup.drain() == DrainResponse(num_finished=1)


async def test_server_that_is_stopped_leaves_turns_to_the_next_one(tmp_path: Path) -> None:
    async with serving(tmp_path) as setup:
        attached = await setup.start_turn("attached")
        left = await setup.start_turn("left")
        left.cancel()
        call = await open_conversation(setup, "sessions/left")
        await setup.say_a_little(2)
        answer = setup.drain()
        await setup.until_draining()

        num_cut_off = await setup.running.server.close(0)

        assert num_cut_off >= 2
        assert await answer == DrainResponse()
        assert await reason_of(read_to_end(attached)) == "DRAINING"
        assert await reason_of(read_to_end(call)) == "DRAINING"
    async with serving(tmp_path) as setup:
        setup.engine.release()
        for session in ("attached", "left"):
            events = setup.running.sessions.StreamTurnEvents(
                StreamTurnEventsRequest(name=f"sessions/{session}/turns/t")
            )
            completed = (await read_to_end(events))[-1].completed  # type: ignore[attr-defined]
            assert completed.finish_reason == FinishReason.FINISH_REASON_MAX_OUTPUT_TOKENS
            assert completed.usage.output_tokens == 200


async def test_stream_that_was_never_opened_ends_with_the_drain(setup: Setup) -> None:
    call = setup.running.sessions.Converse()
    await until(lambda: setup.running.server.supervision.num_calls == 1)

    assert await setup.drain() == DrainResponse()

    assert await reason_of(call.read()) == "DRAINING"


@pytest.mark.parametrize("seconds", [-1, 86_401])
async def test_limit_out_of_range_is_refused_and_drains_nothing(setup: Setup, seconds: int) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await setup.drain(Duration(seconds=seconds))

    violations = details_of(caught.value)["BadRequest"].field_violations
    assert [violation.field for violation in violations] == ["limit"]
    assert not setup.running.server.supervision.draining
