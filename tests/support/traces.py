"""Servers that tell a collector, and what is asked of them."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path

import grpc
from antiphon.v1.inference_pb2 import GenerateRequest
from antiphon.v1.session_pb2 import (
    AppendItems,
    ConverseRequest,
    OpenSession,
    RunTurnRequest,
    StartTurn,
)
from antiphon.v1.types_pb2 import GenerationConfig, Prompt, SamplingParams, StopConditions

from support.fake_engine import FakeEngine
from support.otlp_sink import OtlpSink, SeenSpan
from support.server import RunningServer, running_server
from support.session_rows import user

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
COMES_WITH = [("traceparent", f"00-{TRACE}-{PARENT}-01")]
CONVERSE = "antiphon.v1.SessionService/Converse"
CREATE_SESSION = "antiphon.v1.SessionService/CreateSession"
RUN_TURN = "antiphon.v1.SessionService/RunTurn"
PHASES = ["queue", "prefill", "decode"]


@asynccontextmanager
async def traced_server(
    directory: Path, sink: OtlpSink, *settings: str, engine: FakeEngine | None = None
) -> AsyncIterator[RunningServer]:
    telemetry = f"telemetry.otlp_endpoint={sink.endpoint}"
    async with running_server(directory, engine=engine, settings=[telemetry, *settings]) as server:
        yield server


def request(num_tokens: int = 4) -> GenerateRequest:
    return GenerateRequest(prompt=Prompt(text="one two three"), config=config(num_tokens))


def config(num_tokens: int = 4) -> GenerationConfig:
    return GenerationConfig(
        sampling=SamplingParams(seed=11, temperature=0.5),
        stop=StopConditions(max_output_tokens=num_tokens, ignore_eos=True),
    )


def turn(turn_id: str, num_tokens: int = 4, **values: object) -> StartTurn:
    return StartTurn(turn_id=turn_id, items=[user("hi")], config=config(num_tokens), **values)  # type: ignore[arg-type]


async def converse(
    server: RunningServer, *turns: StartTurn | AppendItems, metadata: Sequence[tuple[str, str]] = ()
) -> None:
    """Runs turns one after the other on one stream."""
    call = server.sessions.Converse(metadata=metadata)
    await call.write(ConverseRequest(open=OpenSession(name="sessions/a")))
    for asked in turns:
        field = "generate" if isinstance(asked, StartTurn) else "append"
        await call.write(ConverseRequest(**{field: asked}))  # type: ignore[arg-type]
        await read_to(call, "completed", "failed")
    await call.done_writing()
    assert await call.read() is grpc.aio.EOF


async def read_to(call: grpc.aio.StreamStreamCall, *kinds: str) -> None:
    """Reads a stream up to an event of one of the kinds."""
    while (await call.read()).turn_event.WhichOneof("event") not in kinds:
        pass


async def read_all(call: grpc.aio.Call) -> None:
    if isinstance(call, grpc.aio.UnaryUnaryCall):
        await call
    else:
        async for _ in call:
            pass


async def submitted(engine: FakeEngine, num: int = 1) -> None:
    async with asyncio.timeout(30):
        while len(engine.requests) < num:  # noqa: ASYNC110 - the fake has no event for it
            await asyncio.sleep(0)


async def run_turn(server: RunningServer, asked: StartTurn, **call: object) -> None:
    run = server.sessions.RunTurn(RunTurnRequest(session="sessions/a", turn=asked), **call)
    async for _ in run:
        pass


def is_inside(inner: SeenSpan, outer: SeenSpan) -> bool:
    starts = outer.span.start_time_unix_nano, inner.span.start_time_unix_nano
    ends = inner.span.end_time_unix_nano, outer.span.end_time_unix_nano
    slack_ns = 50_000  # The two were put on the wall's clock apart.
    return starts[0] <= starts[1] + slack_ns and ends[0] <= ends[1] + slack_ns


def check_whole(chat: SeenSpan, sink: OtlpSink) -> None:
    """Checks the spans of a request that ran to its end."""
    phases = [span for span in sink.below(chat) if span.name in PHASES]
    assert [span.name for span in phases] == PHASES
    assert all(is_inside(span, chat) for span in phases)
    for earlier, later in pairwise(phases):
        assert earlier.span.end_time_unix_nano == later.span.start_time_unix_nano
    assert phases[0].span.start_time_unix_nano == chat.span.start_time_unix_nano
    assert phases[2].event_names[0] == "first_token"
    chunks = sink.below(phases[1])
    assert [span.name for span in chunks] == ["prefill.chunk"]
    assert is_inside(chunks[0], phases[1])
    computed = chunks[0].attributes["antiphon.tokens"]
    reused = phases[1].attributes["antiphon.reused_tokens"]
    assert computed + reused == phases[1].attributes["antiphon.prompt_tokens"]
