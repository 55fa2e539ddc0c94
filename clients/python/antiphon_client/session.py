"""A session over one bidirectional stream: many turns, no reconnect between them."""

import asyncio
from contextlib import suppress
from types import TracebackType
from typing import Self
from uuid import uuid4

import grpc
from antiphon.v1 import session_pb2, session_pb2_grpc, types_pb2
from grpc import aio

from antiphon_client.channel import Connection, duration
from antiphon_client.errors import ErrorDetails, ServerError
from antiphon_client.failures import error_of, from_failure, from_rpc_error
from antiphon_client.prompts import Says, items_of
from antiphon_client.turn import Inbox, Turn

_Call = aio.StreamStreamCall[session_pb2.ConverseRequest, session_pb2.ConverseResponse]
_ENDING_EVENTS = ("completed", "failed")


class Session:
    """Drives one session. Use it as an asynchronous context manager.

    Turns may be sent while others run; the server works on them in order.

    Attributes:
        info: The session as the server told it last; empty until it is entered.
        go_away: Set where the server is about to end the stream.
    """

    def __init__(self, connection: Connection, opening: session_pb2.OpenSession) -> None:
        self.info = session_pb2.Session()
        self.go_away: types_pb2.GoAway | None = None
        self._connection = connection
        self._opening = opening
        self._inboxes: dict[str, Inbox] = {}
        self._write_lock = asyncio.Lock()
        self._call: _Call | None = None
        self._reader: asyncio.Task[None] | None = None
        self._ended: ServerError | None = None

    @property
    def name(self) -> str:
        """`sessions/{session}`."""
        return self.info.name

    @property
    def attached(self) -> bool:
        """Whether the stream stands; a session whose stream ended can be resumed by its name."""
        return self._call is not None and self._ended is None

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def open(self) -> None:
        """Attaches to the session, or creates it.

        Raises:
            ServerError: it was refused, or there was no answer in the options' time.
        """
        assert self._call is None, "a session is opened once"
        self._call = session_pb2_grpc.SessionServiceStub(self._connection.channel).Converse()
        try:
            async with asyncio.timeout(self._connection.options.timeout_s):
                first = await self._open_stream(self._call)
        except TimeoutError:
            self._call.cancel()
            raise error_of(
                ErrorDetails(
                    code=grpc.StatusCode.DEADLINE_EXCEEDED,
                    message=f"no answer in {self._connection.options.timeout_s:g} s",
                )
            ) from None
        self.info = first.opened.session
        self._reader = asyncio.create_task(self._read(self._call))

    async def send(
        self,
        says: Says = (),
        config: types_pb2.GenerationConfig | None = None,
        *,
        timeout_s: float | None = None,
        turn_id: str = "",
    ) -> Turn:
        """Starts a turn that adds `says` and asks for an answer; returns it at once.

        The server fails the turn where it has not ended after `timeout_s`.
        """
        timeout = None if timeout_s is None else duration(timeout_s)
        return await self.start(
            session_pb2.StartTurn(
                turn_id=turn_id,
                items=items_of(says),
                config=config,
                timeout=timeout,
            )
        )

    async def start(self, turn: session_pb2.StartTurn) -> Turn:
        """Starts a turn with all that the contract offers; an empty id is filled in."""
        filled = session_pb2.StartTurn()
        filled.CopyFrom(turn)
        filled.turn_id = turn.turn_id or uuid4().hex
        frame = session_pb2.ConverseRequest(frame_id=filled.turn_id, generate=filled)
        return await self._follow(filled.turn_id, frame)

    async def append(self, says: Says, *, turn_id: str = "") -> Turn:
        """Adds items without asking for an answer; the turn ends once they are durable."""
        appended = session_pb2.AppendItems(items=items_of(says), turn_id=turn_id or uuid4().hex)
        frame = session_pb2.ConverseRequest(frame_id=appended.turn_id, append=appended)
        return await self._follow(appended.turn_id, frame)

    async def close(self) -> None:
        """Waits a while for turns that run, then ends the stream; the session stays. Idempotent.

        Turns still running then go by their `on_disconnect`: they go on where nothing else was
        said.
        """
        if self._call is None or self._reader is None:
            return
        try:
            async with asyncio.timeout(self._connection.options.close_timeout_s):
                if not self._call.done():
                    await self._call.done_writing()
                await asyncio.shield(self._reader)
        except (TimeoutError, aio.AioRpcError, asyncio.InvalidStateError):
            pass
        finally:
            self._call.cancel()
            self._reader.cancel()
            await asyncio.wait([self._reader])

    async def _open_stream(self, call: _Call) -> session_pb2.ConverseResponse:
        try:
            with suppress(asyncio.InvalidStateError):  # over already: reading tells why
                await call.write(session_pb2.ConverseRequest(open=self._opening))
            first = await call.read()
        except aio.AioRpcError as error:
            raise from_rpc_error(error) from None
        if not isinstance(first, session_pb2.ConverseResponse) or not first.HasField("opened"):
            call.cancel()
            raise error_of(
                ErrorDetails(
                    code=grpc.StatusCode.UNKNOWN,
                    message="the stream's first frame was not `opened`",
                )
            )
        return first

    async def _follow(self, turn_id: str, frame: session_pb2.ConverseRequest) -> Turn:
        assert turn_id not in self._inboxes, "this stream already follows the turn"
        inbox = Inbox()
        self._inboxes[turn_id] = inbox
        try:
            await self._write(frame)
        except ServerError:
            self._inboxes.pop(turn_id, None)
            raise

        async def cancel(discard_partial: bool) -> None:
            request = session_pb2.CancelRequest(turn_id=turn_id, discard_partial=discard_partial)
            await self._write(session_pb2.ConverseRequest(cancel=request))

        return Turn(turn_id, events=inbox, cancel=cancel)

    async def _write(self, frame: session_pb2.ConverseRequest) -> None:
        assert self._call is not None, "enter the session first"
        async with self._write_lock:
            if self._ended is not None:
                raise self._ended
            try:
                await self._call.write(frame)
            except aio.AioRpcError as error:
                raise from_rpc_error(error) from None
            except asyncio.InvalidStateError:
                raise self._ended or _stream_over() from None

    async def _read(self, call: _Call) -> None:
        failure = _stream_over()
        try:
            # `read` as in the opening: a call's iterator can't take over from it.
            while isinstance(response := await call.read(), session_pb2.ConverseResponse):
                self._take(response)
        except aio.AioRpcError as error:
            failure = from_rpc_error(error)
        finally:
            self._ended = failure
            for inbox in self._inboxes.values():
                inbox.fail(failure)
            self._inboxes.clear()

    def _take(self, response: session_pb2.ConverseResponse) -> None:
        match response.WhichOneof("frame"):
            case "turn_event":
                self._take_event(response.turn_event)
            case "rejected":
                # A refused cancellation has no inbox under its empty id: its turn goes on.
                inbox = self._inboxes.pop(response.rejected.frame_id, None)
                if inbox is not None:
                    inbox.fail(from_failure(response.rejected.failure))
            case "changed":
                self.info = response.changed.session
            case "go_away":
                self.go_away = response.go_away

    def _take_event(self, event: session_pb2.TurnEvent) -> None:
        inbox = self._inboxes.get(event.turn_id)
        if inbox is None:
            return  # of a turn that another stream started
        inbox.put(event)
        if event.WhichOneof("event") in _ENDING_EVENTS:
            del self._inboxes[event.turn_id]


def _stream_over() -> ServerError:
    return error_of(
        ErrorDetails(code=grpc.StatusCode.CANCELLED, message="the session's stream has ended")
    )
