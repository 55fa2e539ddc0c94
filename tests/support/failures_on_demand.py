"""Provokes each kind of failure of a whole server, as a caller can."""

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import msgspec
from antiphon.v1 import inference_pb2, inference_pb2_grpc, model_pb2, session_pb2
from antiphon.v1.types_pb2 import (
    ChatMessage,
    Choice,
    Constraint,
    Conversation,
    GenerationConfig,
    Item,
    Prompt,
    Role,
    StopConditions,
    TokenIds,
    ToolCall,
)
from google.protobuf.duration_pb2 import Duration

from antiphon_engine.api.handle import EngineState
from support.chat_templates import CHATML_WITH_TOOLS
from support.fake_engine import FACTS, FakeEngine
from support.server import RunningServer
from support.tenants import write_tokens

LIMIT_S = 60.0
SESSION = "sessions/mine"


class FaultyEngine(FakeEngine):
    """Has a fault of its own."""

    def submit(self, request: object, **_: object) -> object:
        raise ZeroDivisionError("a fault")


@dataclass(frozen=True, slots=True, kw_only=True)
class Provocation:
    """How one kind of failure comes about."""

    by: Callable[[RunningServer], Awaitable[object]]
    """Makes the call that fails; returns where it should not."""
    engine: Callable[[], FakeEngine] = FakeEngine
    settings: Sequence[str] = ()
    template: str | None = None
    """In place of the checkpoint's; empty: it has none."""
    files: Callable[[Path], Sequence[str]] = field(default=lambda _: ())
    """Writes what the settings that it returns name."""


def slow() -> FakeEngine:
    return FakeEngine(step_interval_s=0.05)


def small() -> FakeEngine:
    return FakeEngine(facts=msgspec.structs.replace(FACTS, kv_cache_tokens=64))


def message(text: str) -> Item:
    return Item(message=ChatMessage(role=Role.ROLE_USER, text=text))


def config(num_tokens: int) -> GenerationConfig:
    return GenerationConfig(stop=StopConditions(max_output_tokens=num_tokens))


async def generate(server: RunningServer, num_prompt_tokens: int = 5, num_tokens: int = 2) -> None:
    ids = TokenIds(ids=[7] * num_prompt_tokens)
    request = inference_pb2.GenerateRequest(prompt=Prompt(token_ids=ids), config=config(num_tokens))
    await server.inference.Generate(request, timeout=LIMIT_S)


async def generate_without_prompt(server: RunningServer) -> None:
    await server.inference.Generate(inference_pb2.GenerateRequest(), timeout=LIMIT_S)


async def generate_beyond_the_context(server: RunningServer) -> None:
    await generate(server, num_prompt_tokens=10_000)


async def generate_much(server: RunningServer) -> None:
    await generate(server, num_tokens=100)


async def chat(server: RunningServer) -> None:
    prompt = Prompt(conversation=Conversation(items=[message("hi")]))
    await server.inference.Generate(inference_pb2.GenerateRequest(prompt=prompt), timeout=LIMIT_S)


async def generate_with(server: RunningServer, **values: object) -> None:
    """Generates with a config of these values."""
    prompt = Prompt(token_ids=TokenIds(ids=[7]))
    request = inference_pb2.GenerateRequest(prompt=prompt, config=GenerationConfig(**values))
    await server.inference.Generate(request, timeout=LIMIT_S)


async def generate_with_an_adapter(server: RunningServer) -> None:
    await generate_with(server, adapter="models/tiny/adapters/none")


async def generate_within_a_broken_expression(server: RunningServer) -> None:
    await generate_with(server, constraint=Constraint(regex="(a"))


async def generate_within_a_long_expression(server: RunningServer) -> None:
    await generate_with(server, constraint=Constraint(regex="a" * 2000))


async def generate_one_of_two_words(server: RunningServer) -> None:
    await generate_with(server, constraint=Constraint(choice=Choice(options=["yes", "no"])))


def silent() -> FakeEngine:
    """Ends each answer before it has begun, whatever it is held to."""
    return FakeEngine(script=lambda request, _: (request.stop.end_ids[0],))


async def create(server: RunningServer, **values: object) -> session_pb2.Session:
    request = session_pb2.CreateSessionRequest(
        session_id="mine", session=session_pb2.Session(**values)
    )
    return await server.sessions.CreateSession(request, timeout=LIMIT_S)


async def get_session(server: RunningServer) -> None:
    await server.sessions.GetSession(session_pb2.GetSessionRequest(name=SESSION), timeout=LIMIT_S)


async def get_expired(server: RunningServer) -> None:
    await create(server, idle_ttl=Duration(seconds=1))
    await asyncio.sleep(1.1)
    await get_session(server)


async def get_turn(server: RunningServer, turn_id: str = "none") -> None:
    name = f"{SESSION}/turns/{turn_id}"
    await server.sessions.GetTurn(session_pb2.GetTurnRequest(name=name), timeout=LIMIT_S)


async def get_unknown_turn(server: RunningServer) -> None:
    await create(server)
    await get_turn(server)


async def get_model(server: RunningServer) -> None:
    await server.models.GetModel(model_pb2.GetModelRequest(name="models/no"), timeout=LIMIT_S)


async def create_twice(server: RunningServer) -> None:
    await create(server)
    await create(server)


async def update_with_a_stale_etag(server: RunningServer) -> None:
    session = await create(server)
    session.etag, session.instructions = "stale", "new"
    request = session_pb2.UpdateSessionRequest(session=session)
    request.update_mask.paths.append("instructions")
    await server.sessions.UpdateSession(request, timeout=LIMIT_S)


async def run_turn(
    server: RunningServer, text: str = "hi", num_tokens: int = 2, **values: object
) -> None:
    start = session_pb2.StartTurn(items=[message(text)], config=config(num_tokens), **values)
    request = session_pb2.RunTurnRequest(session=SESSION, turn=start)
    async for _ in server.sessions.RunTurn(request, timeout=LIMIT_S):
        pass


async def run_without_results(server: RunningServer) -> None:
    call = Item(tool_call=ToolCall(call_id="c1", tool_name="now"))
    request = session_pb2.CreateSessionRequest(session_id="mine", items=[message("hi"), call])
    await server.sessions.CreateSession(request, timeout=LIMIT_S)
    await run_turn(server)


async def begin_turn(server: RunningServer) -> None:
    """Begins a turn that takes long, and leaves it to itself."""
    start = session_pb2.StartTurn(items=[message("hi")], config=config(100))
    request = session_pb2.RunTurnRequest(session=SESSION, turn=start)
    call = server.sessions.RunTurn(request, timeout=LIMIT_S)
    assert (await call.read()).HasField("accepted")


async def run_beside_another(server: RunningServer) -> None:
    await create(server)
    await begin_turn(server)
    await run_turn(server, if_busy=session_pb2.StartTurn.IF_BUSY_REJECT)


async def run_behind_too_many(server: RunningServer) -> None:
    await create(server)
    await begin_turn(server)
    await begin_turn(server)
    await run_turn(server)


async def run_with_a_timeout(server: RunningServer) -> None:
    await create(server)
    await run_turn(server, num_tokens=100, timeout=Duration(nanos=200_000_000))


async def open_twice(server: RunningServer) -> None:
    await create(server)
    frame = session_pb2.ConverseRequest(open=session_pb2.OpenSession(name=SESSION))
    first = server.sessions.Converse(timeout=LIMIT_S)
    await first.write(frame)
    await first.read()
    async for _ in server.sessions.Converse(iter([frame]), timeout=LIMIT_S):
        pass


async def be_taken_over(server: RunningServer) -> None:
    await create(server)
    opening = session_pb2.OpenSession(name=SESSION)
    first = server.sessions.Converse(timeout=LIMIT_S)
    await first.write(session_pb2.ConverseRequest(open=opening))
    await first.read()
    opening.take_over = True
    second = server.sessions.Converse(timeout=LIMIT_S)
    await second.write(session_pb2.ConverseRequest(open=opening))
    while await first.read() is not grpc.aio.EOF:
        pass


async def fill_the_context(server: RunningServer) -> None:
    await create(server)
    for _ in range(2):
        await run_turn(server, "one two three four five six seven eight " * 15)


async def append_and_get_much(server: RunningServer) -> None:
    await create(server)
    append = session_pb2.AppendItems(turn_id="much", items=[message("x" * (4 << 20))])
    frames = [
        session_pb2.ConverseRequest(open=session_pb2.OpenSession(name=SESSION)),
        session_pb2.ConverseRequest(append=append),
    ]
    async for _ in server.sessions.Converse(iter(frames), timeout=LIMIT_S):
        pass
    await get_turn(server, "much")


async def generate_while_draining(server: RunningServer) -> None:
    server.server.supervision.begin_drain()
    await generate(server)


async def generate_without_an_engine(server: RunningServer) -> None:
    assert isinstance(server.engine, FakeEngine)
    server.engine.set_state(EngineState.DOWN)
    await generate(server)


async def create_where_nothing_can_be_written(server: RunningServer) -> None:
    store = server.server._store
    assert store is not None
    await store._writer.run(lambda file: file.execute("PRAGMA busy_timeout = 10"))
    other = sqlite3.connect(server.config.store.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    try:
        await create(server)
    finally:
        other.close()


async def read_too_slowly(server: RunningServer) -> None:
    """Asks for much, reads nothing for longer than the grace, then the rest."""
    options = [("grpc.http2.lookahead_bytes", 1 << 16), ("grpc.http2.bdp_probe", 0)]
    async with grpc.aio.insecure_channel(server.target, options) as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        call = stub.MultiplexGenerate(timeout=LIMIT_S)
        wide = config(100)
        wide.output.top_logprobs = 5
        for tag in range(1, 65):
            prompt = Prompt(token_ids=TokenIds(ids=[7] * 5))
            request = inference_pb2.GenerateRequest(prompt=prompt, config=wide)
            await call.write(inference_pb2.MultiplexGenerateRequest(tag=tag, generate=request))
        await asyncio.sleep(3)
        async for _ in call:
            pass


def tokens(directory: Path) -> Sequence[str]:
    return [f"server.tokens_file={write_tokens(directory / 'tokens.toml')}"]


async def generate_twice(server: RunningServer) -> None:
    await generate(server)
    await generate(server)


PROVOCATIONS = {
    "INVALID_FIELD": Provocation(by=generate_without_prompt),
    "CONTEXT_LENGTH_EXCEEDED": Provocation(by=generate_beyond_the_context),
    "TEMPLATE_ERROR": Provocation(by=chat, template="{{ raise_exception('not so') }}"),
    "UNSUPPORTED_FEATURE": Provocation(by=generate_with_an_adapter),
    "UNSUPPORTED_CONSTRAINT": Provocation(by=generate_within_a_broken_expression),
    "CONSTRAINT_TOO_COMPLEX": Provocation(
        by=generate_within_a_long_expression, settings=["constraints.max_size_bytes=1024"]
    ),
    "CONSTRAINT_VIOLATED": Provocation(by=generate_one_of_two_words, engine=silent),
    "SESSION_NOT_FOUND": Provocation(by=get_session),
    "SESSION_EXPIRED": Provocation(by=get_expired),
    "TURN_NOT_FOUND": Provocation(by=get_unknown_turn),
    "MODEL_NOT_FOUND": Provocation(by=get_model),
    "ID_TAKEN": Provocation(by=create_twice),
    "STALE_HEAD": Provocation(by=update_with_a_stale_etag),
    "SESSION_BUSY": Provocation(by=run_beside_another, engine=slow),
    "SESSION_ATTACHED": Provocation(by=open_twice),
    "TOOL_RESULTS_MISSING": Provocation(by=run_without_results, template=CHATML_WITH_TOOLS),
    "SESSION_FULL": Provocation(by=fill_the_context),
    "NO_CHAT_TEMPLATE": Provocation(by=create, template=""),
    "QUOTA_EXCEEDED": Provocation(by=generate_twice, settings=["quotas.requests_per_minute=1"]),
    "NEVER_FITS": Provocation(by=generate_much, engine=small),
    "SLOW_CONSUMER": Provocation(
        by=read_too_slowly,
        settings=["limits.max_undelivered_bytes=65536", "limits.slow_reader_grace_s=0.2"],
    ),
    "RESPONSE_TOO_LARGE": Provocation(by=append_and_get_much),
    "OVERLOADED": Provocation(
        by=run_behind_too_many, engine=slow, settings=["sessions.max_queued_turns=1"]
    ),
    "DRAINING": Provocation(by=generate_while_draining),
    "ENGINE_DOWN": Provocation(by=generate_without_an_engine),
    "STORE_UNAVAILABLE": Provocation(by=create_where_nothing_can_be_written),
    "TIMEOUT": Provocation(by=run_with_a_timeout, engine=slow),
    "TAKEN_OVER": Provocation(by=be_taken_over),
    "BAD_CREDENTIAL": Provocation(by=generate, files=tokens),
    "INTERNAL": Provocation(by=generate, engine=FaultyEngine),
}
"""By reason."""
