"""An engine process that is killed: calls without a session fail, and everything else goes on."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable
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
from support.answers import ask_in_session, fold_turn
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


async def test_turn_goes_on_in_the_next_engine_as_if_nothing_had_been(
    server: RunningServer,
) -> None:
    undisturbed = await new_session(server)
    expected = [
        (await ask_in_session(server, text, config(size), session=undisturbed))[1]
        for text, size in (("one two three", 12), ("and on and on", 400), ("four five", 12))
    ]
    session, _ = await ask_in_session(server, "one two three", config(12))
    watch = await Watch.of(server)
    call = server.sessions.RunTurn(
        RunTurnRequest(session=session, turn=turn("and on and on", "long", 400)), timeout=LIMIT_S
    )
    events = [await call.read()]
    while not events[-1].HasField("delta"):
        events.append(await call.read())

    kill_engine(server)

    while (event := await call.read()) is not grpc.aio.EOF:
        events.append(event)
    await watch.until_serving()
    output = fold_turn(events)
    assert output == expected[1].output
    assert len({event.epoch for event in events}) == 1
    usage = events[-1].completed.usage
    assert (usage.prompt_tokens, usage.output_tokens) == (expected[1].usage.prompt_tokens, 400)
    kept = await server.sessions.GetTurn(GetTurnRequest(name=f"{session}/turns/long"))
    assert (kept.state, kept.output) == (Turn.STATE_COMPLETED, output)
    _, after = await ask_in_session(server, "four five", config(12), session=session)
    assert after.output == expected[2].output
    assert after.usage.prompt_tokens == expected[2].usage.prompt_tokens
    assert await head_of(server, session) == (after.name, 3)


async def head_of(server: RunningServer, session: str) -> tuple[str, int]:
    found = await server.sessions.GetSession(GetSessionRequest(name=session), timeout=LIMIT_S)
    return found.head_turn, found.num_turns


async def test_running_and_waiting_turns_of_a_stream_outlive_the_engine(
    server: RunningServer,
) -> None:
    session, undisturbed = await new_session(server), await new_session(server)
    expected = [
        (await ask_in_session(server, text, config(size), session=undisturbed))[1].output.text
        for text, size in (("one two three", 400), ("and then", 12))
    ]
    watch = await Watch.of(server)
    call = server.sessions.Converse(timeout=LIMIT_S)
    await call.write(ConverseRequest(open=OpenSession(name=session)))
    await call.write(ConverseRequest(generate=turn("one two three", "runs", 400)))
    await call.write(ConverseRequest(generate=turn("and then", "waits", 12)))
    events = await events_until(call, "delta")

    kill_engine(server)

    events += await events_until(call, "completed")
    events += await events_until(call, "completed")
    await watch.until_serving()
    await call.done_writing()
    assert await call.read() is grpc.aio.EOF
    assert await call.code() is grpc.StatusCode.OK
    told = {
        turn_id: "".join(event.delta.text for event in events if event.turn_id == turn_id)
        for turn_id in ("runs", "waits")
    }
    assert list(told.values()) == expected
    assert await head_of(server, session) == (f"{session}/turns/waits", 2)


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
