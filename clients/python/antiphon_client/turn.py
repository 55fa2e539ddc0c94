"""One turn of a session, read as events or as text."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Protocol

from antiphon.v1 import session_pb2, types_pb2

from antiphon_client.errors import ServerError, TurnRestarted
from antiphon_client.failures import from_failure


class NewsOfTurn(Protocol):
    """Brings the events of one turn, each once."""

    @property
    def read_up_to(self) -> session_pb2.TurnCursor:
        """How far the turn has been read."""

    async def __anext__(self) -> session_pb2.TurnEvent:
        """Returns the next event. Raises TurnRestarted, and can be read on."""


class Turn:
    """The news of one turn, in order, up to its `completed`. Read once, as events or as text.

    Attributes:
        turn_id: Its id in its session.
        started: What was known before the first token; None until then.
        completed: How it ended; None until then.
        tool_calls: The tool calls that are complete so far, as they came. Each is valid, and stays
            though the server crash: work on it may begin at once.
    """

    def __init__(
        self,
        turn_id: str,
        *,
        news: NewsOfTurn,
        cancel: Callable[[bool], Awaitable[None]],
    ) -> None:
        self.turn_id = turn_id
        self.started: types_pb2.GenerationStarted | None = None
        self.completed: session_pb2.TurnCompleted | None = None
        self.tool_calls: list[types_pb2.ToolCall] = []
        self._failed: ServerError | None = None
        self._news = news
        self._cancel = cancel
        self._num_read = 0

    @property
    def cursor(self) -> session_pb2.TurnCursor:
        """How far it has been read; `stream_turn_events` goes on from there."""
        return self._news.read_up_to

    @property
    def open_calls(self) -> list[types_pb2.ToolCall]:
        """The calls that the next turn must bring results of; known once it has ended.

        Those of a turn that was stopped take none: they are left out of the history.
        """
        ended = self.completed
        if ended is None or ended.finish_reason == types_pb2.FINISH_REASON_CANCELLED:
            return []
        return list(self.tool_calls)

    def __aiter__(self) -> AsyncIterator[session_pb2.TurnEvent]:
        return self

    async def __anext__(self) -> session_pb2.TurnEvent:
        """Returns the next event that this client knows.

        Raises:
            ServerError: the turn failed or was refused, or the server is lost for too long.
            TurnRestarted: the server lost what was read, and the answer is another. Reading on
                gives what is behind the part that both have.
        """
        if self._failed is not None:
            raise self._failed
        if self.completed is not None:
            raise StopAsyncIteration
        try:
            event = await anext(self._news)
        except TurnRestarted as restarted:
            self._num_read = min(self._num_read, len(restarted.kept_text))
            raise
        match event.WhichOneof("event"):
            case "started":
                self.started = event.started
            case "tool_call":
                self.tool_calls.append(event.tool_call)
            case "completed":
                self.completed = event.completed
            case "failed":
                self._failed = from_failure(event.failed)
                raise self._failed
        return event

    async def text(self) -> AsyncIterator[str]:
        """Yields the answer's pieces. After TurnRestarted, call it again to read on."""
        async for delta in self.pieces():
            if delta.channel == types_pb2.OUTPUT_CHANNEL_CONTENT:
                yield delta.text

    async def pieces(self) -> AsyncIterator[types_pb2.Delta]:
        """Yields all that has text: of the thinking, the answer and calls, told by `channel`."""
        async for event in self:
            delta = event.delta
            if delta.channel == types_pb2.OUTPUT_CHANNEL_CONTENT:
                self._num_read += len(delta.text)
            if delta.text:
                yield delta

    async def end(self) -> None:
        """Reads to the end, whatever comes."""
        while True:
            try:
                async for _ in self:
                    pass
            except TurnRestarted:
                continue
            return

    async def answer(self) -> str:
        """Reads to the end and returns the rest of the answer.

        Raises:
            TurnRestarted: what was read before this call no longer holds.
        """
        num_read_before = self._num_read
        pieces: list[str] = []
        while True:
            try:
                async for piece in self.text():
                    pieces.append(piece)
                return "".join(pieces)
            except TurnRestarted as restarted:
                if len(restarted.kept_text) < num_read_before:
                    raise
                pieces = [restarted.kept_text[num_read_before:]]

    async def cancel(self, *, discard_partial: bool = False) -> None:
        """Asks for an early end, which comes as `completed`; with `discard_partial`, as an error.

        A turn that has ended stays as it is.
        """
        if self.completed is None and self._failed is None:
            await self._cancel(discard_partial)
