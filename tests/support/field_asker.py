"""Makes calls on sessions in the same state, and says all that can be seen of them."""

import contextlib
import itertools
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass

import grpc
from antiphon.v1 import admin_pb2, inference_pb2, model_pb2, session_pb2
from antiphon.v1.inference_pb2 import (
    MultiplexGenerateResponse,
    StreamGenerateResponse,
    TaggedEvent,
)
from antiphon.v1.session_pb2 import (
    ConverseRequest,
    ConverseResponse,
    CreateSessionRequest,
    OpenSession,
    Session,
    StartTurn,
    TurnEvent,
)
from antiphon.v1.types_pb2 import GenerationConfig
from google.protobuf import json_format, message_factory
from google.protobuf.message import Message

from support.fake_engine import FakeEngine
from support.request_fields import without
from support.server import RunningServer, details_of
from support.session_rows import user

CONFIG = GenerationConfig(
    sampling={"temperature": 0.7, "seed": 5},
    stop={"max_output_tokens": 12, "stop_strings": ["e"]},
)
METHODS = {
    method.name: method
    for module in (admin_pb2, inference_pb2, model_pb2, session_pb2)
    for service in module.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}

TIMES = {"timings", "create_time", "update_time", "end_time", "expire_time", "etag", "epoch"}
PIECES = {"last_sequence", "first_sequence", "sequence", "kept_sequence"}
CACHE = {"cached_prompt_tokens", "residency"}
UNTOLD = TIMES | CACHE | PIECES
"""Fields that differ from call to call."""

_HISTORY = "history"
"""A session whose forks save each call the turns before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """All that can be seen of a call, but for times and names that are drawn."""

    seen: str
    refused: dict[str, str] | None
    """Why it, or its frame, was refused for a feature that is not there."""


class Asker:
    """Makes calls on sessions in the same state."""

    def __init__(self, server: RunningServer, engine: FakeEngine) -> None:
        self._server = server
        self._engine = engine
        self._numbers = itertools.count(1)
        self._known: dict[tuple[str, bytes], Outcome] = {}
        self._has_history = False

    async def outcome(self, name: str, request: Message) -> Outcome:
        key = (name, request.SerializeToString(deterministic=True))
        if key not in self._known:
            self._known[key] = await self._ask(name, request)
        return self._known[key]

    async def _ask(self, name: str, request: Message) -> Outcome:
        session = f"s{next(self._numbers):04}"
        names = _sessions_in(name, request)
        if "SESSION" in names:
            await self._prepare(session)
        num_before = len(self._engine.requests)
        answers: list[Message] = []
        status, refused = "", None
        try:
            async for answer in self._call(name, request, session):
                answers.append(without(answer, UNTOLD))
                if name == "Converse" and answer.rejected.failure.reason == "UNSUPPORTED_FEATURE":
                    refused = dict(answer.rejected.failure.metadata)
        except grpc.aio.AioRpcError as error:
            status = f"{error.code()} {error.details()}"
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                refused = dict(details_of(error)["ErrorInfo"].metadata)
        left = await self._left([each.replace("SESSION", session) for each in names])
        answers += [without(each, UNTOLD) for each in left]
        submitted = [each.request for each in self._engine.requests[num_before:]]
        seen = f"{status} {joined(answers)} {submitted}".replace(session, "SESSION")
        return Outcome(seen=re.sub(r"[0-9a-f]{32}", "DRAWN", seen), refused=refused)

    async def _left(self, sessions: Sequence[str]) -> list[Message]:
        """Returns what there is of sessions."""
        left: list[Message] = []
        for name in (f"sessions/{session}" for session in sessions):
            with contextlib.suppress(grpc.aio.AioRpcError):
                left.append(
                    await self._server.sessions.GetSession(session_pb2.GetSessionRequest(name=name))
                )
                left.append(
                    await self._server.sessions.ListTurns(
                        session_pb2.ListTurnsRequest(session=name, show_all=True)
                    )
                )
        return left

    async def _prepare(self, session: str) -> None:
        """Makes a session with two turns in its history and one that failed."""
        sessions = self._server.sessions
        if not self._has_history:
            defaults = GenerationConfig(sampling={"top_k": 9})
            await sessions.CreateSession(
                CreateSessionRequest(session_id=_HISTORY, session=Session(defaults=defaults))
            )
            for turn_id in ("t1", "t2"):
                await self._run_turn(_HISTORY, turn_id, CONFIG)
            self._has_history = True
        await sessions.ForkSession(
            session_pb2.ForkSessionRequest(name=f"sessions/{_HISTORY}", session_id=session)
        )
        too_long = GenerationConfig()
        too_long.CopyFrom(CONFIG)
        too_long.stop.max_output_tokens = 1_000_000
        with contextlib.suppress(grpc.aio.AioRpcError):
            await self._run_turn(session, "t3", too_long)

    async def _run_turn(self, session: str, turn_id: str, config: GenerationConfig) -> None:
        start = StartTurn(turn_id=turn_id, items=[user("hi")], config=config)
        run = session_pb2.RunTurnRequest(session=f"sessions/{session}", turn=start)
        async for _ in self._server.sessions.RunTurn(run):
            pass

    async def _call(self, name: str, request: Message, session: str) -> AsyncIterator[Message]:
        method = METHODS[name]
        service = method.containing_service
        is_admin = service.name == "AdminService"
        channel = self._server.admin_channel if is_admin else self._server.channel
        kind = {
            (False, False): channel.unary_unary,
            (False, True): channel.unary_stream,
            (True, True): channel.stream_stream,
        }[method.client_streaming, method.server_streaming]
        call = kind(
            f"/{service.full_name}/{name}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=message_factory.GetMessageClass(method.output_type).FromString,
        )
        frames = [placed(request, session)]
        if name == "Converse" and not request.HasField("open"):
            frames.insert(0, ConverseRequest(open=OpenSession(name=f"sessions/{session}")))
        answers = call(iter(frames) if method.client_streaming else frames[0], timeout=60)
        if not method.server_streaming:
            yield await answers
            return
        async for answer in answers:
            yield answer
            if name == "WatchEngineStats":
                return


def _sessions_in(name: str, request: Message) -> list[str]:
    """Returns the placeholders of the sessions that a request reads, changes or makes."""
    text = json_format.MessageToJson(request)
    opens = name == "Converse" and not request.HasField("open")
    found = {"SESSION"} if opens else set()
    return sorted(found | set(re.findall(r"(?:new-)?SESSION", text)))


def placed(request: Message, session: str) -> Message:
    """Returns the request with the session that it is about in place of NAME's."""
    as_json = json_format.MessageToJson(request).replace("SESSION", session)
    return json_format.Parse(as_json, type(request)())


def joined(answers: Sequence[Message]) -> str:
    """Returns answers as text; how an output is cut into pieces means nothing."""
    whole, text = [], ""
    for answer in _apart(answers):
        event: Message = answer
        if isinstance(answer, TaggedEvent):
            event = answer.generation
        elif isinstance(answer, ConverseResponse) and answer.HasField("turn_event"):
            event = answer.turn_event
        if isinstance(event, TurnEvent | StreamGenerateResponse) and event.HasField("delta"):
            text += event.delta.text
            event.delta.ClearField("text")
            if not (event.delta.token_ids or event.delta.logprobs):
                continue
        whole.append(str(answer))
    return f"{text!r} {whole}"


def _apart(answers: Sequence[Message]) -> Iterator[Message]:
    """Yields answers one by one; which of them share a frame means nothing."""
    for answer in answers:
        if isinstance(answer, MultiplexGenerateResponse):
            yield from answer.events
            if answer.HasField("go_away"):
                yield answer.go_away
        else:
            yield answer
