"""A turn's news between the stream that brings them and the turn's reader."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Final

from antiphon.v1 import session_pb2

from antiphon_client.errors import ServerError, TurnRestarted
from antiphon_client.transcript import News, Transcript

MAX_UNREAD_EVENTS: Final = 4096
"""How many events of a turn that nobody reads are taken in without holding the server back."""

_SHARE: Final = 4
"""Acknowledgements go out whenever this part of what may be unacknowledged has been read."""


class Acknowledgements:
    """What was read and is not acknowledged yet, by turn."""

    def __init__(self, max_unacked_events: int, wake: Callable[[], None]) -> None:
        """Counts for streams with this bound, 0 where nothing is acknowledged; `wake` calls."""
        self._threshold = max(max_unacked_events // _SHARE, 1) if max_unacked_events else 0
        self._wake = wake
        self._cursors: dict[str, session_pb2.TurnCursor] = {}
        self._num_read = 0
        self._is_due = False

    def note(
        self, cursor: session_pb2.TurnCursor, num_events: int = 1, *, is_last: bool = False
    ) -> None:
        """Notes that all up to `cursor` was read; told soon, or at once as the last."""
        if not self._threshold or not cursor.sequence:
            return
        self._cursors[cursor.turn_id] = cursor
        self._num_read += num_events
        if is_last or self._num_read >= self._threshold:
            self._is_due = True
            self._wake()

    @property
    def is_due(self) -> bool:
        """Whether enough was read to say so."""
        return self._is_due

    def take(self) -> list[session_pb2.TurnCursor]:
        """Returns what is to be acknowledged now."""
        cursors = list(self._cursors.values())
        self._cursors.clear()
        self._num_read, self._is_due = 0, False
        return cursors


class Feed:
    """The news of one turn: put in by the stream's reader, taken out by the turn's.

    Holds what was not read yet. What is read is acknowledged; so is what comes while nobody reads
    the turn, up to a bound, so that a turn that its caller ignores does not stop the others.
    """

    def __init__(
        self, turn_id: str, acknowledgements: Acknowledgements, wanted: asyncio.Event
    ) -> None:
        """Sets it up; `wanted` is set where the turn's reader waits."""
        self._transcript = Transcript(turn_id)
        self._acknowledgements = acknowledgements
        self._unread: deque[tuple[News, session_pb2.TurnCursor]] = deque()
        self._failure: ServerError | None = None
        self._news = asyncio.Event()
        self._read_up_to = self._transcript.cursor
        self._num_owed = 0
        self._is_read = False
        self._wanted = wanted
        self.is_awaited = False
        """Whether the turn's reader waits."""

    @property
    def cursor(self) -> session_pb2.TurnCursor:
        """How far the turn has been told."""
        return self._transcript.cursor

    @property
    def read_up_to(self) -> session_pb2.TurnCursor:
        """How far the turn has been read."""
        return self._read_up_to

    @property
    def ended(self) -> bool:
        """Whether the turn's terminal event has come."""
        return self._transcript.ended

    def put(self, event: session_pb2.TurnEvent) -> None:
        """Adds what is news of `event`. Raises Gap where events before it did not come."""
        news = self._transcript.take(event)
        self._num_owed += 1
        cursor = self._transcript.cursor
        self._unread.extend((each, cursor) for each in news)
        is_ignored = not self._is_read and len(self._unread) <= MAX_UNREAD_EVENTS
        if self.ended or is_ignored:
            self._acknowledge(cursor)
        elif not self._unread:
            self._read_up_to = cursor
            self._acknowledge(cursor)
        if news:
            self._news.set()

    def fail(self, failure: ServerError) -> None:
        """Raises `failure` to the reader behind the news that are there."""
        self._failure = failure
        self._news.set()

    def __aiter__(self) -> AsyncIterator[session_pb2.TurnEvent]:
        return self

    async def __anext__(self) -> session_pb2.TurnEvent:
        """Waits for the next event; the stream's keepalive and the time of reconnecting bound it.

        Raises:
            TurnRestarted: the answer was started again and is another.
            ServerError: the stream ended.
        """
        self._is_read = True
        while not self._unread:
            if self.ended:
                raise StopAsyncIteration
            if self._failure is not None:
                raise self._failure
            self._news.clear()
            self.is_awaited = True
            self._wanted.set()
            try:
                await self._news.wait()
            finally:
                self.is_awaited = False
        news, self._read_up_to = self._unread.popleft()
        if not self._unread:
            # What was told since and was no news is read with it.
            self._read_up_to = self._transcript.cursor
        if not self.ended:
            self._acknowledge(self._read_up_to)
        if isinstance(news, TurnRestarted):
            raise news
        return news

    def _acknowledge(self, cursor: session_pb2.TurnCursor) -> None:
        """Notes that all up to `cursor` was read: the oldest event, or all where that is all."""
        num_events = self._num_owed if cursor == self._transcript.cursor else 1
        self._num_owed = max(self._num_owed - num_events, 0)
        self._acknowledgements.note(cursor, num_events, is_last=self.ended)
