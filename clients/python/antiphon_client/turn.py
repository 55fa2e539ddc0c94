"""One turn of a session, read as events or as text."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable

from antiphon.v1 import session_pb2, types_pb2

from antiphon_client.errors import ServerError
from antiphon_client.failures import from_failure


class Turn:
    """The news of one turn, in order, up to its `completed`. Read once, as events or as text.

    Attributes:
        turn_id: Its id in its session.
        started: What was known before the first token; None until then.
        completed: How it ended; None until then.
    """

    def __init__(
        self,
        turn_id: str,
        *,
        events: AsyncIterator[session_pb2.TurnEvent],
        cancel: Callable[[bool], Awaitable[None]],
    ) -> None:
        self.turn_id = turn_id
        self.started: types_pb2.GenerationStarted | None = None
        self.completed: session_pb2.TurnCompleted | None = None
        self._events = events
        self._cancel = cancel

    def __aiter__(self) -> AsyncIterator[session_pb2.TurnEvent]:
        return self

    async def __anext__(self) -> session_pb2.TurnEvent:
        """Returns the next event that this client knows.

        Raises:
            ServerError: the turn failed or was refused, or the stream that tells of it broke.
        """
        if self.completed is not None:
            raise StopAsyncIteration
        while True:
            event = await anext(self._events)
            match event.WhichOneof("event"):
                case None:
                    continue
                case "started":
                    self.started = event.started
                case "completed":
                    self.completed = event.completed
                case "failed":
                    raise from_failure(event.failed)
            return event

    async def text(self) -> AsyncIterator[str]:
        """Yields the answer's pieces."""
        async for event in self:
            delta = event.delta
            if delta.channel == types_pb2.OUTPUT_CHANNEL_CONTENT and delta.text:
                yield delta.text

    async def answer(self) -> str:
        """Reads to the end and returns the rest of the answer."""
        return "".join([piece async for piece in self.text()])

    async def cancel(self, *, discard_partial: bool = False) -> None:
        """Asks for an early end, which comes as `completed`; with `discard_partial`, as an error.

        A turn that has ended stays as it is.
        """
        if self.completed is None:
            await self._cancel(discard_partial)


class Inbox:
    """Events of a turn between the stream that brings them and the turn's reader.

    Holds what was not read yet: at most one answer.
    """

    def __init__(self) -> None:
        self._events: deque[session_pb2.TurnEvent] = deque()
        self._failure: ServerError | None = None
        self._news = asyncio.Event()

    def put(self, event: session_pb2.TurnEvent) -> None:
        """Adds an event for the reader."""
        self._events.append(event)
        self._news.set()

    def fail(self, failure: ServerError) -> None:
        """Raises `failure` to the reader behind the events that are there."""
        self._failure = failure
        self._news.set()

    def __aiter__(self) -> AsyncIterator[session_pb2.TurnEvent]:
        return self

    async def __anext__(self) -> session_pb2.TurnEvent:
        """Waits for the next event; the stream's keepalive bounds the wait."""
        while not self._events:
            if self._failure is not None:
                raise self._failure
            self._news.clear()
            await self._news.wait()
        return self._events.popleft()
