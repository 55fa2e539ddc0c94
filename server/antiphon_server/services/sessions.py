"""Conversations that live on the server."""

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from typing import NoReturn, TypeVar

import grpc
from antiphon.v1 import session_pb2_grpc
from antiphon.v1.session_pb2 import (
    AppendTurnRequest,
    CancelTurnRequest,
    ConverseRequest,
    ConverseResponse,
    CreateSessionRequest,
    DeleteSessionRequest,
    ForkSessionRequest,
    GetSessionRequest,
    GetTurnRequest,
    ListSessionsRequest,
    ListSessionsResponse,
    ListTurnsRequest,
    ListTurnsResponse,
    RewindSessionRequest,
    RunTurnRequest,
    Session,
    StreamTurnEventsRequest,
    Turn,
    TurnCursor,
    TurnEvent,
    UpdateSessionRequest,
)
from antiphon.v1.types_pb2 import Failure
from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import Message
from grpc.aio import ServicerContext

from antiphon_server.answer_size import check_answer_size
from antiphon_server.call_writer import current_writer
from antiphon_server.caller import caller_of
from antiphon_server.long_calls import LongCalls
from antiphon_server.services.call_ends import close_with
from antiphon_server.services.converse import Conversation
from antiphon_server.services.reader_watch import grace_of
from antiphon_server.services.turn_events import TurnEvents
from antiphon_server.sessions.appending import append_turn
from antiphon_server.sessions.event_log import EventLog, ReaderSpec
from antiphon_server.sessions.failures import is_cancelled, to_error
from antiphon_server.sessions.listing import list_sessions, list_turns
from antiphon_server.sessions.names import parse_session_name, parse_turn_name
from antiphon_server.sessions.registry import SessionRegistry
from antiphon_server.sessions.session import LiveSession
from antiphon_server.sessions.turn_request import Frame, read_append, read_start_turn
from antiphon_server.telemetry.call_trace import current_call

RequestT = TypeVar("RequestT", bound=Message)
ResponseT = TypeVar("ResponseT", bound=Message)

_APPEND_HINT = "append the items in several turns, or by Converse, which repeats none"
_TURN_HINT = "the turn's events, which RunTurn replays for its id, have no such bound"


class SessionService(session_pb2_grpc.SessionServiceServicer):
    """Checks, calls the registry and translates."""

    def __init__(self, registry: SessionRegistry, long_calls: LongCalls) -> None:
        """Sets where the sessions are, and where calls stand that are told before they end."""
        self._registry = registry
        self._long_calls = long_calls

    async def CreateSession(
        self, request: CreateSessionRequest, context: ServicerContext[CreateSessionRequest, Session]
    ) -> Session:
        """Creates a session."""
        return await self._registry.create(caller_of(context).tenant, request)

    async def GetSession(
        self, request: GetSessionRequest, context: ServicerContext[GetSessionRequest, Session]
    ) -> Session:
        """Returns a session as it stands."""
        key = parse_session_name(caller_of(context).tenant, request.name, "name")
        async with self._registry.use(key) as session:
            return await session.present_with_residency()

    async def ListSessions(
        self,
        request: ListSessionsRequest,
        context: ServicerContext[ListSessionsRequest, ListSessionsResponse],
    ) -> ListSessionsResponse:
        """Returns a page of the tenant's sessions."""
        return await list_sessions(self._registry, caller_of(context).tenant, request)

    async def UpdateSession(
        self, request: UpdateSessionRequest, context: ServicerContext[UpdateSessionRequest, Session]
    ) -> Session:
        """Changes the named fields."""
        return await self._registry.update(caller_of(context).tenant, request)

    async def DeleteSession(
        self, request: DeleteSessionRequest, context: ServicerContext[DeleteSessionRequest, Empty]
    ) -> Empty:
        """Cancels its turns and deletes the session."""
        key = parse_session_name(caller_of(context).tenant, request.name, "name")
        await self._registry.delete(key, request.etag)
        return Empty()

    async def Converse(
        self,
        request_iterator: AsyncIterator[ConverseRequest],
        context: ServicerContext[ConverseRequest, ConverseResponse],
    ) -> AsyncGenerator[ConverseResponse, None]:
        """Talks."""
        conversation = Conversation(
            self._registry,
            caller_of(context).tenant,
            call=current_call(),
            writer=current_writer(),
        )
        close_with(context, conversation)
        with self._long_calls.hold_stream(conversation):
            async with contextlib.aclosing(conversation.run(request_iterator)) as frames:
                async for frame in frames:
                    yield frame

    async def RunTurn(
        self, request: RunTurnRequest, context: ServicerContext[RunTurnRequest, TurnEvent]
    ) -> AsyncGenerator[TurnEvent, None]:
        """Runs one turn and tells of it."""
        key = parse_session_name(caller_of(context).tenant, request.session, "session")
        frame = Frame(path="turn", call=current_call())
        asked = read_start_turn(request.turn, frame)
        async with self._registry.use(key) as session:
            turn = await session.start_turn(asked)
            spec = ReaderSpec(frame_id="", drives=True)
            async with contextlib.aclosing(
                self._events(session, turn.log, spec, context)
            ) as events:
                async for event in events:
                    yield event
                    if event.HasField("failed"):
                        await _end_as(event.failed, context)

    async def CancelTurn(
        self, request: CancelTurnRequest, context: ServicerContext[CancelTurnRequest, Turn]
    ) -> Turn:
        """Stops a turn and returns it once it has ended."""
        key, turn_id = parse_turn_name(caller_of(context).tenant, request.name, "name")
        async with self._registry.use(key) as session:
            live = await session.cancel_turn(turn_id, discards=request.discard_partial)
            if live is not None:
                await live.ended.wait()
            return _sendable(await session.logs.read_turn(turn_id))

    async def GetTurn(
        self, request: GetTurnRequest, context: ServicerContext[GetTurnRequest, Turn]
    ) -> Turn:
        """Returns a turn as it stands."""
        key, turn_id = parse_turn_name(caller_of(context).tenant, request.name, "name")
        async with self._registry.use(key) as session:
            return _sendable(await session.logs.read_turn(turn_id))

    async def ListTurns(
        self,
        request: ListTurnsRequest,
        context: ServicerContext[ListTurnsRequest, ListTurnsResponse],
    ) -> ListTurnsResponse:
        """Returns a page of a session's turns."""
        return await list_turns(self._registry, caller_of(context).tenant, request)

    async def ForkSession(
        self, request: ForkSessionRequest, context: ServicerContext[ForkSessionRequest, Session]
    ) -> Session:
        """Makes a session that shares a history."""
        return await self._registry.fork(caller_of(context).tenant, request)

    async def RewindSession(
        self, request: RewindSessionRequest, context: ServicerContext[RewindSessionRequest, Session]
    ) -> Session:
        """Takes a session back in its history."""
        return await self._registry.rewind(caller_of(context).tenant, request)

    async def AppendTurn(
        self, request: AppendTurnRequest, context: ServicerContext[AppendTurnRequest, Turn]
    ) -> Turn:
        """Adds items, and returns the turn once it is durable."""
        key = parse_session_name(caller_of(context).tenant, request.session, "session")
        frame = Frame(path="append", call=current_call())
        # The answer repeats the items; one that can't be sent must not come behind the change.
        check_answer_size(request.append, hint=_APPEND_HINT)
        async with self._registry.use(key) as session:
            turn = await append_turn(session, read_append(request.append, frame))
        if turn.state == Turn.STATE_FAILED:
            await _end_as(turn.failure, context)
        return turn

    async def StreamTurnEvents(
        self,
        request: StreamTurnEventsRequest,
        context: ServicerContext[StreamTurnEventsRequest, TurnEvent],
    ) -> AsyncGenerator[TurnEvent, None]:
        """Tells of a turn from where the caller stands to its end."""
        key, turn_id = parse_turn_name(caller_of(context).tenant, request.name, "name")
        cursor = TurnCursor(turn_id=turn_id, epoch=request.epoch, sequence=request.after_sequence)
        async with self._registry.use(key) as session:
            log = await session.logs.find(turn_id)
            async with contextlib.aclosing(
                self._events(session, log, ReaderSpec(cursor=cursor), context)
            ) as events:
                async for event in events:
                    yield event

    async def _events(
        self,
        session: LiveSession,
        log: EventLog,
        spec: ReaderSpec,
        context: ServicerContext[RequestT, TurnEvent],
    ) -> AsyncGenerator[TurnEvent, None]:
        """Yields what a reader of a turn gets."""
        told = TurnEvents(
            session,
            log,
            spec,
            grace=grace_of(self._registry.surroundings),
            writer=current_writer(),
        )
        close_with(context, told)
        with contextlib.closing(told), self._long_calls.hold(told):
            async with contextlib.aclosing(told.events()) as events:
                async for event in events:
                    yield event


def _sendable(turn: Turn) -> Turn:
    check_answer_size(turn, hint=_TURN_HINT)
    return turn


async def _end_as(failure: Failure, context: ServicerContext[RequestT, ResponseT]) -> NoReturn:
    """Ends a call with a turn's failure as its status."""
    if is_cancelled(failure):
        await context.abort(grpc.StatusCode.CANCELLED, failure.message)
    raise to_error(failure)
