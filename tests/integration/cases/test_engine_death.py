"""An engine process that is killed: what runs fails as such, and everything else goes on."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Sequence
from dataclasses import dataclass

import grpc
import pytest
import pytest_asyncio
from antiphon.v1.inference_pb2 import GenerateRequest
from antiphon.v1.session_pb2 import (
    ConverseRequest,
    ConverseResponse,
    CreateSessionRequest,
    GetSessionRequest,
    GetTurnRequest,
    OpenSession,
    RunTurnRequest,
    StartTurn,
    Turn,
    TurnEvent,
)
from antiphon.v1.types_pb2 import (
    ChatMessage,
    GenerationConfig,
    Item,
    OutputOptions,
    Prompt,
    Role,
    SamplingParams,
    StopConditions,
    TokenIds,
)
from grpc_health.v1 import health_pb2

from antiphon_engine.api.link import EngineLink
from support.answers import ask_in_session
from support.canary import Canary
from support.real_server import real_server
from support.server import RunningServer, details_of
from support.tiny_checkpoints import TinyModel, make_checkpoint
from support.tiny_tokenizers import save_byte_level_tokenizer

pytestmark = pytest.mark.asyncio(loop_scope="module")

LIMIT_S = 100.0
CONTEXT_TOKENS = 4096
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RunningServer]:
    directory = tmp_path_factory.mktemp("served")
    made = make_checkpoint(directory / "tiny", TinyModel(context_tokens=CONTEXT_TOKENS))
    checkpoint = save_byte_level_tokenizer(made)
    settings = (
        f"engine.kv_cache_tokens={4 * CONTEXT_TOKENS}",
        "engine.max_rows=4",
        "engine.restart_delay_s=0.05",
    )
    async with real_server(directory, checkpoint, settings=settings) as running:
        yield running


def engine_of(server: RunningServer) -> EngineLink:
    assert isinstance(server.engine, EngineLink)
    return server.engine


def kill_engine(server: RunningServer) -> None:
    process_id = engine_of(server).process_id
    assert process_id is not None
    os.kill(process_id, signal.SIGKILL)


def config(max_output_tokens: int) -> GenerationConfig:
    return GenerationConfig(
        sampling=SamplingParams(temperature=0),
        stop=StopConditions(max_output_tokens=max_output_tokens, ignore_eos=True),
        output=OutputOptions(token_ids=True, prompt_token_ids=True),
    )


def endless(first_id: int) -> GenerateRequest:
    return GenerateRequest(
        prompt=Prompt(token_ids=TokenIds(ids=[first_id, 6, 7])), config=config(3000)
    )


def turn(text: str, turn_id: str, max_output_tokens: int = 3000) -> StartTurn:
    return StartTurn(
        turn_id=turn_id,
        items=[Item(message=ChatMessage(role=Role.ROLE_USER, text=text))],
        config=config(max_output_tokens),
    )


async def new_session(server: RunningServer) -> str:
    return (await server.sessions.CreateSession(CreateSessionRequest(), timeout=LIMIT_S)).name


@dataclass(frozen=True, slots=True)
class Watch:
    """A Watch call on the server's health."""

    call: grpc.aio.UnaryStreamCall

    @classmethod
    async def of(cls, server: RunningServer) -> "Watch":
        watch = cls(server.health.Watch(health_pb2.HealthCheckRequest(), timeout=LIMIT_S))
        assert await watch.told() == SERVING
        return watch

    async def told(self) -> int:
        return int((await self.call.read()).status)

    async def until_serving(self) -> None:
        """Waits for the one change to worse and the one back."""
        assert [await self.told(), await self.told()] == [NOT_SERVING, SERVING]
        self.call.cancel()


async def assert_engine_down(call: Awaitable[object]) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert details_of(caught.value)["ErrorInfo"].reason == "ENGINE_DOWN"
    assert details_of(caught.value)["RetryInfo"].retry_delay.ToTimedelta().total_seconds() > 0


async def read_all(call: grpc.aio.UnaryStreamCall) -> None:
    while await call.read() is not grpc.aio.EOF:
        pass


def assert_failed_in_band(events: Sequence[TurnEvent]) -> None:
    kinds = [event.WhichOneof("event") for event in events]
    assert kinds[-1] == "failed"
    assert not {"completed", "failed"} & set(kinds[:-1])
    failure = events[-1].failed
    assert failure.code == grpc.StatusCode.UNAVAILABLE.value[0]
    assert failure.reason == "ENGINE_DOWN"
    assert failure.HasField("retry_delay")


async def test_calls_without_a_session_fail_and_the_next_ones_are_answered(
    server: RunningServer,
) -> None:
    canary = await Canary.of(server)
    watch = await Watch.of(server)
    streams = [server.inference.StreamGenerate(endless(i), timeout=LIMIT_S) for i in (10, 11)]
    for stream in streams:
        while not (await stream.read()).HasField("delta"):
            pass
    unary = asyncio.ensure_future(server.inference.Generate(endless(12), timeout=LIMIT_S))
    waiting = [server.inference.StreamGenerate(endless(i), timeout=LIMIT_S) for i in range(20, 26)]
    await asyncio.sleep(0.1)

    kill_engine(server)

    await assert_engine_down(unary)
    for call in (*streams, *waiting):
        await assert_engine_down(read_all(call))
    await watch.until_serving()
    assert engine_of(server).process_id != canary.engine_process_id
    reborn = await Canary.of(server)
    assert (reborn.text, reborn.token_ids) == (canary.text, canary.token_ids)


async def test_turn_fails_in_band_and_its_session_goes_on_with_the_same_history(
    server: RunningServer,
) -> None:
    undisturbed = await new_session(server)
    for text in ("one two three", "four five"):
        _, expected = await ask_in_session(server, text, config(12), session=undisturbed)
    session, first = await ask_in_session(server, "one two three", config(12))
    watch = await Watch.of(server)
    call = server.sessions.RunTurn(
        RunTurnRequest(session=session, turn=turn("never mind", "lost")), timeout=LIMIT_S
    )
    events = [await call.read()]
    while not events[-1].HasField("delta"):
        events.append(await call.read())

    kill_engine(server)

    while not events[-1].HasField("failed"):
        events.append(await call.read())
    assert_failed_in_band(events)
    await assert_engine_down(call.read())
    await watch.until_serving()
    lost = await server.sessions.GetTurn(GetTurnRequest(name=f"{session}/turns/lost"))
    assert lost.state == Turn.STATE_FAILED
    assert lost.failure.reason == "ENGINE_DOWN"
    assert (await head_of(server, session)) == (first.name, 1)
    _, second = await ask_in_session(server, "four five", config(12), session=session)
    assert second.output == expected.output
    assert second.usage.prompt_tokens == expected.usage.prompt_tokens
    assert (await head_of(server, session)) == (second.name, 2)


async def head_of(server: RunningServer, session: str) -> tuple[str, int]:
    found = await server.sessions.GetSession(GetSessionRequest(name=session), timeout=LIMIT_S)
    return found.head_turn, found.num_turns


async def test_stream_of_a_session_outlives_the_engine(server: RunningServer) -> None:
    session = await new_session(server)
    watch = await Watch.of(server)
    call = server.sessions.Converse(timeout=LIMIT_S)
    await call.write(ConverseRequest(open=OpenSession(name=session)))
    await call.write(ConverseRequest(generate=turn("one two three", "lost")))
    events = await events_until(call, "delta")

    kill_engine(server)

    events += await events_until(call, "failed")
    await watch.until_serving()
    await call.write(ConverseRequest(generate=turn("one two three", "kept", 12)))
    more = await events_until(call, "completed")
    await call.done_writing()
    assert await call.read() is grpc.aio.EOF
    assert await call.code() is grpc.StatusCode.OK
    assert_failed_in_band(events)
    assert {event.turn_id for event in more} == {"kept"}
    _, expected = await ask_in_session(server, "one two three", config(12))
    assert "".join(event.delta.text for event in more) == expected.output.text
    assert (await head_of(server, session)) == (f"{session}/turns/kept", 1)


async def events_until(call: grpc.aio.StreamStreamCall, kind: str) -> list[TurnEvent]:
    """Reads the events of turns up to one of a kind."""
    events: list[TurnEvent] = []
    while True:
        response: ConverseResponse = await call.read()
        if response.HasField("turn_event"):
            events.append(response.turn_event)
            if events[-1].WhichOneof("event") == kind:
                return events


async def test_engine_that_is_killed_while_it_starts_again_is_started_once_more(
    server: RunningServer,
) -> None:
    canary = await Canary.of(server)
    link, watch = engine_of(server), await Watch.of(server)

    kill_engine(server)
    async with asyncio.timeout(LIMIT_S):
        while link.process_id in (None, canary.engine_process_id):  # noqa: ASYNC110 - no event
            await asyncio.sleep(0.005)
    loading_id = link.process_id
    await assert_engine_down(server.inference.Generate(endless(10), timeout=LIMIT_S))
    kill_engine(server)

    await watch.until_serving()
    assert link.process_id not in (loading_id, canary.engine_process_id)
    reborn = await Canary.of(server)
    assert (reborn.text, reborn.token_ids) == (canary.text, canary.token_ids)
