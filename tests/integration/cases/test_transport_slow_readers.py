"""Readers that are slow or stop: what waits for them is bounded, and nothing that waits is lost."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
import msgspec
from antiphon.v1.inference_pb2 import GenerateRequest, StreamGenerateResponse
from antiphon.v1.inference_pb2_grpc import InferenceServiceStub
from antiphon.v1.session_pb2 import (
    ConverseRequest,
    ConverseResponse,
    CreateSessionRequest,
    OpenSession,
    StartTurn,
    TurnCursor,
    TurnEvent,
)
from antiphon.v1.session_pb2_grpc import SessionServiceStub
from antiphon.v1.types_pb2 import (
    GenerationConfig,
    OutputOptions,
    Prompt,
    SamplingParams,
    StopConditions,
)

from antiphon_engine.api.handle import max_unread_tokens
from support.fake_engine import FACTS, FakeEngine
from support.fake_request import FakeRequest
from support.server import INFO, RunningServer, details_of, running_server
from support.session_rows import user

NUM_STREAMS = 4
NUM_LOST = 3
"""Those that never come back."""
NUM_TOKENS = 7500
MAX_BYTES = 64 << 10
GRACE_S = 1.0
CONTEXT_TOKENS = 8192
SMALL_WINDOW = (("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 1 << 16))
SESSION = "sessions/slow"


def config(seed: int, num_tokens: int = NUM_TOKENS) -> GenerationConfig:
    """A long output of which every token comes with much beside it."""
    return GenerationConfig(
        sampling=SamplingParams(seed=seed),
        stop=StopConditions(max_output_tokens=num_tokens, ignore_eos=True),
        output=OutputOptions(top_logprobs=20, token_ids=True),
    )


def asked(seed: int) -> GenerateRequest:
    return GenerateRequest(prompt=Prompt(text="go on"), config=config(seed))


@dataclass(frozen=True, slots=True)
class Setting:
    engine: FakeEngine
    server: RunningServer
    channel: grpc.aio.Channel
    """Takes in little ahead of its reader."""


@asynccontextmanager
async def setting(directory: Path, *, grace_s: float) -> AsyncIterator[Setting]:
    room = {"context_tokens": CONTEXT_TOKENS, "kv_cache_tokens": 1 << 20}
    engine = FakeEngine(facts=msgspec.structs.replace(FACTS, **room))
    settings = [
        f"limits.max_undelivered_bytes={MAX_BYTES}",
        f"limits.slow_reader_grace_s={grace_s}",
    ]
    info = dataclasses.replace(INFO, context_tokens=CONTEXT_TOKENS)
    async with (
        running_server(directory, engine=engine, info=info, settings=settings) as server,
        grpc.aio.insecure_channel(server.target, options=SMALL_WINDOW) as channel,
    ):
        yield Setting(engine, server, channel)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - the engine's state has no event
            await asyncio.sleep(0.01)


def num_said(requests: Sequence[FakeRequest]) -> list[int]:
    return [len(request.outputs[0].token_ids) for request in requests]


async def at_rest(requests: Sequence[FakeRequest]) -> None:
    """Waits until all rest for good: what is on its way to a reader wakes them up again."""
    async with asyncio.timeout(60):
        before: list[int] = []
        while before != num_said(requests) or not all(each.held or each.ended for each in requests):
            before = num_said(requests)
            await asyncio.sleep(0.3)


async def rest_of(
    call: grpc.aio.UnaryStreamCall[GenerateRequest, StreamGenerateResponse],
) -> tuple[list[int], int]:
    """Returns the tokens that a stream still tells, and the size of its largest message."""
    ids: list[int] = []
    largest = 0
    while (response := await call.read()) is not grpc.aio.EOF:
        ids += response.delta.token_ids
        largest = max(largest, response.ByteSize())
    return ids, largest


async def test_readers_that_stop_are_bounded_and_get_everything_once_they_come_back(
    tmp_path: Path,
):
    async with setting(tmp_path, grace_s=600) as here:
        stub = InferenceServiceStub(here.channel)
        calls = [stub.StreamGenerate(asked(seed)) for seed in range(NUM_STREAMS)]
        begun = [await call.read() for call in calls]
        requests = sorted(here.engine.requests, key=lambda each: each.request.sampling.seed)
        await at_rest(requests)
        said = num_said(requests)
        unread = [request.news.outputs[0] if request.news else None for request in requests]

        # Others are served as if nobody was in the way.
        control = await here.server.inference.Generate(
            GenerateRequest(prompt=Prompt(text="on its own"), config=config(99, 50)), timeout=30
        )
        still = num_said(requests)
        told = [await rest_of(call) for call in calls]

    bound = max_unread_tokens(requests[0].request, MAX_BYTES)
    assert len(control.outputs[0].token_ids) == 50
    assert said == still
    assert max(said) < NUM_TOKENS
    assert all(len(news.token_ids) <= bound for news in unread if news)
    assert all(response.HasField("started") for response in begun)
    for (ids, largest), request in zip(told, requests, strict=True):
        assert ids == request.outputs[0].token_ids
        assert len(ids) == NUM_TOKENS
        assert largest < 3 << 20


async def test_readers_that_never_come_back_lose_their_streams_and_the_engine_its_work(
    tmp_path: Path,
):
    async with setting(tmp_path, grace_s=GRACE_S) as here:
        stub = InferenceServiceStub(here.channel)
        calls = [stub.StreamGenerate(asked(seed)) for seed in range(NUM_LOST)]
        for call in calls:
            await call.read()
        requests = here.engine.requests[:NUM_LOST]

        await until(lambda: all(request.closed for request in requests))
        ended = [await failure_of(call) for call in calls]

    for error, ids in ended:
        info = details_of(error)["ErrorInfo"]
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert (info.reason, info.metadata["resumable"]) == ("SLOW_CONSUMER", "false")
        assert len(ids) < NUM_TOKENS
    assert here.engine.num_running == 0


async def failure_of(
    call: grpc.aio.UnaryStreamCall[GenerateRequest, StreamGenerateResponse],
) -> tuple[grpc.aio.AioRpcError, list[int]]:
    ids: list[int] = []
    try:
        while (response := await call.read()) is not grpc.aio.EOF:
            ids += response.delta.token_ids
    except grpc.aio.AioRpcError as error:
        return error, ids
    raise AssertionError("the call ended well")


@asynccontextmanager
async def conversing(
    here: Setting, **values: object
) -> AsyncIterator[grpc.aio.StreamStreamCall[ConverseRequest, ConverseResponse]]:
    call = SessionServiceStub(here.channel).Converse()
    await call.write(ConverseRequest(open=OpenSession(name=SESSION, **values)))
    assert (await call.read()).HasField("opened")
    yield call
    call.cancel()


async def left_of(
    call: grpc.aio.StreamStreamCall[ConverseRequest, ConverseResponse],
) -> tuple[list[TurnEvent], grpc.aio.AioRpcError]:
    """Returns what a stream still tells, and how it ends."""
    events: list[TurnEvent] = []
    try:
        while (response := await call.read()) is not grpc.aio.EOF:
            events.append(response.turn_event)
    except grpc.aio.AioRpcError as error:
        return events, error
    raise AssertionError("the stream ended well")


async def begin_turn(
    here: Setting, call: grpc.aio.StreamStreamCall[ConverseRequest, ConverseResponse]
) -> None:
    start = StartTurn(turn_id="t1", items=[user("go on")], config=config(7))
    await call.write(ConverseRequest(generate=start))
    assert (await call.read()).turn_event.HasField("accepted")
    await until(lambda: bool(here.engine.requests))
    await at_rest(here.engine.requests)


async def test_a_stream_on_a_session_holds_its_turn_and_goes_on_where_it_was(tmp_path: Path):
    async with setting(tmp_path, grace_s=600) as here:
        await here.server.sessions.CreateSession(CreateSessionRequest(session_id="slow"))
        async with conversing(here) as call:
            await begin_turn(here, call)
            (request,) = here.engine.requests
            (num_before,) = num_said([request])
            ids: list[int] = []
            event = (await call.read()).turn_event
            while not event.HasField("completed"):
                ids += event.delta.token_ids
                event = (await call.read()).turn_event

    assert num_before < NUM_TOKENS
    assert ids == request.outputs[0].token_ids
    assert event.completed.usage.output_tokens == NUM_TOKENS


async def test_a_reader_that_lost_its_stream_resumes_its_turn(tmp_path: Path):
    async with setting(tmp_path, grace_s=GRACE_S) as here:
        await here.server.sessions.CreateSession(CreateSessionRequest(session_id="slow"))
        async with conversing(here) as call:
            await begin_turn(here, call)
            (request,) = here.engine.requests
            # The stream is lost, so nobody holds the turn any more.
            await until(lambda: request.ended)
            seen, lost = await left_of(call)
        last = seen[-1]
        cursor = TurnCursor(turn_id="t1", epoch=last.epoch, sequence=last.sequence)
        async with conversing(here, resume=[cursor]) as call:
            rest = [(await call.read()).turn_event]
            while not rest[-1].HasField("completed"):
                rest.append((await call.read()).turn_event)

    info = details_of(lost)["ErrorInfo"]
    assert lost.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert (info.reason, info.metadata["turn"]) == ("SLOW_CONSUMER", "t1")
    assert rest[0].first_sequence == last.sequence + 1
    told = [event for event in [*seen, *rest] if event.HasField("delta")]
    ids = [token_id for event in told for token_id in event.delta.token_ids]
    assert ids == request.outputs[0].token_ids
    assert len(ids) == NUM_TOKENS
