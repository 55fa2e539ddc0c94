"""A session over a fake engine whose model calls tools, over real gRPC."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import grpc
import msgspec
import pytest
from antiphon.v1.session_pb2 import (
    CreateSessionRequest,
    GetTurnRequest,
    RunTurnRequest,
    Session,
    StartTurn,
    StreamTurnEventsRequest,
    Turn,
    TurnEvent,
)
from antiphon.v1.types_pb2 import GenerationConfig, Item, StopConditions, ToolCall, ToolResult

from antiphon_engine.api.messages import GenerationRequest
from support.calling_models import TOOLS, save_calling_tokenizer
from support.chat_templates import CHATML_WITH_TOOLS
from support.fake_engine import FACTS, FakeEngine
from support.server import INFO, RunningServer, running_server
from support.session_bench import eventually
from support.session_rows import user

LIMIT_S = 20.0
CONTEXT_TOKENS = 2048
ROOMY = msgspec.structs.replace(FACTS, context_tokens=CONTEXT_TOKENS, vocabulary_size=1024)
SESSION = "sessions/mine"
CLOSER = "</tool_call>"
BERN = '<tool_call>\n{"name": "weather", "arguments": {"city": "Bern"}}\n</tool_call>'
NOW = '<tool_call>\n{"name": "clock_now", "arguments": {}}\n</tool_call>'


@dataclass(slots=True, kw_only=True)
class CallingBench:
    """A server with one session, whose model says what it is told to."""

    server: RunningServer
    engine: FakeEngine

    def encode(self, text: str) -> list[int]:
        tokenizer = self.server.model.tokenizer
        return tokenizer.encode(text, add_special_tokens=False, allow_special_tokens=True)

    def says(self, *answers: str, ends: bool = True) -> None:
        """Has the model say these texts, one a request; the last of them for ever."""
        (end_id,) = self.server.model.end_ids
        scripts = [[*self.encode(text), *([end_id] if ends else [])] for text in answers]
        asked: list[bytes] = []

        def script(request: GenerationRequest, _index: int) -> Sequence[int]:
            if request.prompt not in asked:
                asked.append(request.prompt)
            return scripts[min(asked.index(request.prompt), len(scripts) - 1)]

        self.engine.script = script

    def start(self, *items: Item, turn_id: str = "t1", max_tokens: int = 500) -> RunTurnRequest:
        config = GenerationConfig(stop=StopConditions(max_output_tokens=max_tokens))
        start = StartTurn(turn_id=turn_id, items=items or [user("What?")], config=config)
        return RunTurnRequest(session=SESSION, turn=start)

    async def run(self, *items: Item, **values: object) -> list[TurnEvent]:
        call = self.server.sessions.RunTurn(self.start(*items, **values), timeout=LIMIT_S)
        return [event async for event in call]

    async def refused(self, *items: Item, **values: object) -> grpc.aio.AioRpcError:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await self.run(*items, **values)
        return caught.value

    async def kept(self, turn_id: str = "t1") -> Turn:
        request = GetTurnRequest(name=f"{SESSION}/turns/{turn_id}")
        return await self.server.sessions.GetTurn(request, timeout=LIMIT_S)

    async def follow(self, **values: object) -> list[TurnEvent]:
        """Reads t1, which is there, to its end."""
        request = StreamTurnEventsRequest(name=f"{SESSION}/turns/t1", **values)
        return [e async for e in self.server.sessions.StreamTurnEvents(request, timeout=LIMIT_S)]

    async def begin(self, num_calls: int, **values: object) -> tuple[object, list[TurnEvent]]:
        """Begins t1, and steps until so many calls are told; returns the stream and its events."""
        self.engine.hold()
        call = self.server.sessions.RunTurn(self.start(**values), timeout=LIMIT_S)
        await eventually(lambda: bool(self.engine.requests))
        (request,) = self.engine.requests
        (said,) = request.outputs
        decode = self.server.model.tokenizer.decode
        while decode(said.token_ids, skip_special_tokens=False).count(CLOSER) < num_calls:
            self.engine.step()
            await eventually(lambda: request.news is None)
        events = [await call.read()]
        while len(calls_in(events)) < num_calls:
            events.append(await call.read())
        return call, events


@asynccontextmanager
async def calling_bench(
    directory: Path,
    *,
    create: bool = True,
    store: Path | None = None,
    settings: Sequence[str] = (),
    **values: object,
) -> AsyncIterator[CallingBench]:
    engine = FakeEngine(facts=ROOMY)
    checkpoint = save_calling_tokenizer(directory / "tokenizer", template=CHATML_WITH_TOOLS)
    info = replace(INFO, context_tokens=CONTEXT_TOKENS)
    settings = [*settings, *([f"store.path={store}"] if store else [])]
    async with running_server(
        directory, engine=engine, checkpoint=checkpoint, info=info, settings=settings
    ) as server:
        if create:
            session = Session(tools=TOOLS, **values)
            request = CreateSessionRequest(session_id="mine", session=session)
            await server.sessions.CreateSession(request, timeout=LIMIT_S)
        yield CallingBench(server=server, engine=engine)


async def rest_of(call: grpc.aio.UnaryStreamCall) -> list[TurnEvent]:
    events: list[TurnEvent] = []
    while (event := await call.read()) is not grpc.aio.EOF:
        events.append(event)
    return events


def calls_in(events: Sequence[TurnEvent]) -> list[ToolCall]:
    return [event.tool_call for event in events if event.HasField("tool_call")]


def result(call: ToolCall, text: str = "21 °C") -> Item:
    return Item(tool_result=ToolResult(call_id=call.call_id, text=text))
