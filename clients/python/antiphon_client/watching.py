"""Everything that happens in a session that others drive."""

from collections import deque
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Self, TypeAlias
from uuid import uuid4

import grpc
from antiphon.v1 import session_pb2, types_pb2

from antiphon_client.channel import Connection
from antiphon_client.errors import ErrorDetails, ServerError, TurnRestarted
from antiphon_client.failures import error_of
from antiphon_client.retry import Outage, passes
from antiphon_client.stream import ConverseStream, events_missing
from antiphon_client.transcript import Gap, News, Transcript

Happening: TypeAlias = session_pb2.TurnEvent | session_pb2.Session
"""An event of a turn, or the session as it stands after a change."""


class SessionWatch:
    """The turns' events and the changes of a session, in order, each once.

    Use it as an asynchronous context manager and iterate over it. Where the stream breaks it is
    opened again, and goes on where it stood. It drives nothing, and nobody is kept from driving.

    Attributes:
        info: The session as the server told it last; empty until it is entered.
    """

    def __init__(self, connection: Connection, name: str) -> None:
        options = connection.options
        self.info = session_pb2.Session(name=name)
        self._connection = connection
        self._attachment_id = uuid4().hex
        self._transcripts: dict[str, Transcript] = {}
        self._unread: deque[News | session_pb2.Session] = deque()
        self._stream: ConverseStream | None = None
        self._is_gone = False
        self._outage = Outage(
            options.reconnect, connection.pace, timeout_s=options.reconnect_timeout_s
        )

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
        """Begins to watch. Raises ServerError: there is no such session, or no server."""
        assert self._stream is None, "a watch is opened once"
        self._stream = await self._connection.retrier.run(
            self._attach, timeout_s=self._connection.options.timeout_s
        )

    async def close(self) -> None:
        """Ends the watch. Idempotent."""
        if self._stream is not None:
            self._stream.cancel()

    def __aiter__(self) -> AsyncIterator[Happening]:
        return self

    async def __anext__(self) -> Happening:
        """Returns what happens next; the stream's keepalive bounds the wait.

        Raises:
            TurnRestarted: an answer was started again and is another; can be read on.
            ServerError: the session has gone, or the server is lost for too long.
        """
        assert self._stream is not None, "enter the watch first"
        while not self._unread:
            try:
                response = await self._stream.read()
                if response is None:
                    raise _ended(self.info.name)
                self._take(response)
            except Gap as gap:
                raise events_missing(gap) from None
            except ServerError as error:
                self._stream = await self._reopen(error)
        news = self._unread.popleft()
        if isinstance(news, TurnRestarted):
            raise news
        return news

    def _take(self, response: session_pb2.ConverseResponse) -> None:
        match response.WhichOneof("frame"):
            case "turn_event":
                self._outage.end()
                self._take_event(response.turn_event)
            case "changed":
                self.info = response.changed.session
                self._unread.append(self.info)
            case "go_away":
                self._is_gone = response.go_away.reason == types_pb2.GoAway.REASON_SESSION_GONE

    def _take_event(self, event: session_pb2.TurnEvent) -> None:
        turn_id = event.turn_id
        transcript = self._transcripts.setdefault(turn_id, Transcript(turn_id))
        self._unread.extend(transcript.take(event))
        if transcript.ended:
            del self._transcripts[turn_id]

    async def _reopen(self, failure: ServerError) -> ConverseStream:
        while True:
            if self._is_gone or not passes(failure):
                raise failure
            await self._outage.wait(failure)
            try:
                return await self._attach(self._outage.left_s)
            except ServerError as error:
                failure = error

    async def _attach(self, left_s: float) -> ConverseStream:
        opening = session_pb2.OpenSession(
            name=self.info.name,
            watch_only=True,
            attachment_id=self._attachment_id,
            resume=[each.cursor for each in self._transcripts.values()],
        )
        timeout_s = min(left_s, self._connection.options.timeout_s)
        stream, self.info = await ConverseStream.open(
            self._connection, opening, timeout_s=timeout_s
        )
        return stream


def _ended(name: str) -> ServerError:
    return error_of(
        ErrorDetails(
            code=grpc.StatusCode.CANCELLED, message=f"the stream that watches {name} has ended"
        )
    )
