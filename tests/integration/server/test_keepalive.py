"""Connections that stay silent: pings are welcome, dead peers are noticed, old ones are told."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import grpc
import msgspec
import pytest
from antiphon.v1.inference_pb2 import GenerateRequest
from antiphon.v1.inference_pb2_grpc import InferenceServiceStub
from antiphon.v1.model_pb2 import ListModelsRequest
from antiphon.v1.model_pb2_grpc import ModelServiceStub
from antiphon.v1.session_pb2 import (
    ConverseRequest,
    ConverseResponse,
    CreateSessionRequest,
    OpenSession,
    StartTurn,
    StreamTurnEventsRequest,
)
from antiphon.v1.types_pb2 import GenerationConfig, GoAway, Prompt, StopConditions

from antiphon_server.config import ServerConfig
from antiphon_server.transport import transport_options
from support.fake_engine import FACTS, FakeEngine
from support.leaving_client import KINDS
from support.multiplexing import Multiplexer
from support.server import RunningServer, details_of, running_server
from support.session_rows import user

PING_EVERY_MS = 200
QUICK_PINGS = "server.min_ping_interval_s=0.1"
NUM_PINGS = 12
REQUEST = GenerateRequest(
    prompt=Prompt(text="go on"),
    config=GenerationConfig(stop=StopConditions(max_output_tokens=200, ignore_eos=True)),
)


@asynccontextmanager
async def held_server(
    directory: Path, *settings: str
) -> AsyncIterator[tuple[RunningServer, FakeEngine]]:
    """A server whose engine says nothing until it is let go on."""
    engine = FakeEngine()
    engine.hold()
    async with running_server(directory, engine=engine, settings=settings) as running:
        yield running, engine


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - polls what another party changes
            await asyncio.sleep(0.01)


def pinging_channel(target: str) -> grpc.aio.Channel:
    """A client that pings as often as it likes, also without a call."""
    return grpc.aio.insecure_channel(
        target,
        options=[
            ("grpc.keepalive_time_ms", PING_EVERY_MS),
            ("grpc.keepalive_timeout_ms", 5000),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.max_pings_without_data", 0),
        ],
    )


def test_pings_every_ten_seconds_are_within_the_default_settings() -> None:
    options = dict(transport_options(ServerConfig()))

    assert options["grpc.http2.min_recv_ping_interval_without_data_ms"] <= 10_000
    assert options["grpc.keepalive_permit_without_calls"] == 1
    assert options["grpc.keepalive_time_ms"] == 30_000
    assert "grpc.max_connection_age_ms" not in options


@pytest.mark.parametrize("phase", ["in a silent call", "without a call"])
async def test_client_that_pings_through_a_silence_keeps_its_connection(
    tmp_path: Path, phase: str
) -> None:
    async with (
        held_server(tmp_path, QUICK_PINGS) as (running, engine),
        pinging_channel(running.target) as channel,
    ):
        await ModelServiceStub(channel).ListModels(ListModelsRequest())
        states = [channel.get_state()]
        if phase == "in a silent call":
            call = InferenceServiceStub(channel).Generate(REQUEST)
        for _ in range(NUM_PINGS):
            await asyncio.sleep(PING_EVERY_MS / 1000)
            states.append(channel.get_state())
        engine.release()
        if phase == "in a silent call":
            assert (await call).usage.output_tokens == 200
        await ModelServiceStub(channel).ListModels(ListModelsRequest())

    # Too many pings would have had the connection closed, and opened again.
    assert set(states) == {grpc.ChannelConnectivity.READY}


@contextmanager
def leaving_client(target: str, *kinds: str) -> Iterator[subprocess.Popen[bytes]]:
    """A client process with long calls."""
    process = subprocess.Popen(
        [sys.executable, "-m", "support.leaving_client", target, *kinds],
        cwd=Path(__file__).parents[2],
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


async def test_work_of_a_peer_that_is_silent_as_the_dead_is_dropped(tmp_path: Path) -> None:
    settings = ["server.keepalive_interval_s=1", "server.keepalive_timeout_s=0.5"]
    facts = msgspec.structs.replace(FACTS, context_tokens=4096, kv_cache_tokens=65_536)
    engine = FakeEngine(facts=facts)
    engine.hold()
    async with running_server(tmp_path, engine=engine, settings=settings) as running:
        with leaving_client(running.target, *KINDS) as client:
            await until(lambda: engine.num_waiting == len(KINDS))
            engine.step()
            assert engine.num_running == len(KINDS)

            client.send_signal(signal.SIGSTOP)
            await until(lambda: engine.num_running == 0)

            assert client.poll() is None
            await until(lambda: running.server.supervision.num_calls == 0)


async def test_stream_is_told_of_its_age_and_finishes_what_runs(tmp_path: Path) -> None:
    settings = ("server.max_connection_age_s=0.3", "server.max_connection_age_grace_s=60")
    async with held_server(tmp_path, *settings) as (running, engine):
        many = Multiplexer(running.inference)
        many.read_on()
        await many.start(1, REQUEST)
        await many.until(lambda seen: bool(seen.go_aways))
        await many.start(2, REQUEST)
        await many.until_ended(2)
        engine.release()
        status = await many.end()

        # A new stream is as good as the first was.
        again = Multiplexer(running.inference)
        await again.start(1, REQUEST)
        assert await again.finish() is grpc.StatusCode.OK

    assert status is grpc.StatusCode.UNAVAILABLE
    (away,) = many.go_aways
    assert (away.reason, away.time_left.seconds) == (GoAway.REASON_MAX_AGE, 60)
    assert many.told[1].kinds[-1] == "completed"
    assert many.told[2].reasons == ["DRAINING"]
    assert "age" in many.told[2].failures[0].message


async def test_stream_that_stays_behind_its_age_is_cut_off(tmp_path: Path) -> None:
    settings = ("server.max_connection_age_s=0.2", "server.max_connection_age_grace_s=0.2")
    async with held_server(tmp_path, *settings) as (running, engine):
        many = Multiplexer(running.inference)
        many.read_on()
        await many.start(1, REQUEST)

        status = await many.end()

        assert status is grpc.StatusCode.UNAVAILABLE
        assert len(many.go_aways) == 1
        assert many.told[1].reasons == ["DRAINING"]
        await until(lambda: engine.num_waiting + engine.num_running == 0)


async def test_transport_waits_for_what_is_told_in_band() -> None:
    config = ServerConfig(max_connection_age_s=100, max_connection_age_grace_s=10)
    options = dict(transport_options(config))

    earliest_ms = 0.9 * options["grpc.max_connection_age_ms"]
    earliest_ms += options["grpc.max_connection_age_grace_ms"]

    # A stream that began just before the connection took no more is told at an age of 100 s.
    assert options["grpc.max_connection_age_ms"] == 100_000
    assert earliest_ms > (1.1 * 100 + 100 + 10 - 2) * 1000


async def read_into(frames: list[ConverseResponse], call: grpc.aio.StreamStreamCall) -> None:
    while (frame := await call.read()) is not grpc.aio.EOF:
        frames.append(frame)


async def test_conversation_is_told_of_its_age_and_its_turn_outlives_it(tmp_path: Path) -> None:
    settings = ("server.max_connection_age_s=0.2", "server.max_connection_age_grace_s=0.2")
    async with held_server(tmp_path, *settings) as (running, engine):
        await running.sessions.CreateSession(CreateSessionRequest(session_id="s"))
        call = running.sessions.Converse()
        await call.write(ConverseRequest(open=OpenSession(name="sessions/s")))
        turn = StartTurn(turn_id="t", items=[user("hi")], config=REQUEST.config)
        await call.write(ConverseRequest(generate=turn))
        frames: list[ConverseResponse] = []
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await read_into(frames, call)
        engine.release()
        events = running.sessions.StreamTurnEvents(
            StreamTurnEventsRequest(name="sessions/s/turns/t")
        )
        told = [event async for event in events]

    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert details_of(caught.value)["ErrorInfo"].reason == "DRAINING"
    (away,) = [frame.go_away for frame in frames if frame.HasField("go_away")]
    assert away.reason == GoAway.REASON_MAX_AGE
    assert told[-1].completed.usage.output_tokens == 200
