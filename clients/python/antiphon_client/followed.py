"""A turn that is followed without a session's stream: by calls that stream its events."""

from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import TypeAlias

import grpc
from antiphon.v1 import session_pb2

from antiphon_client.channel import Connection
from antiphon_client.errors import ErrorDetails, ServerError, TurnRestarted
from antiphon_client.failures import error_of
from antiphon_client.retry import Outage, passes
from antiphon_client.stream import events_missing
from antiphon_client.transcript import Gap, News, Transcript

Told: TypeAlias = AsyncIterator[session_pb2.TurnEvent]


class FollowedTurn:
    """The news of one turn; calls again, from where it stood, where a call breaks."""

    def __init__(
        self,
        connection: Connection,
        cursor: session_pb2.TurnCursor,
        call: Callable[[session_pb2.TurnCursor], Told],
    ) -> None:
        """Follows a turn from `cursor` by `call`, which returns the events behind a cursor."""
        options = connection.options
        self._call = call
        self._turn_id = cursor.turn_id
        self._transcript = Transcript(cursor.turn_id, cursor)
        self._events = call(cursor)
        self._unread: deque[News] = deque()
        self._outage = Outage(
            options.reconnect, connection.pace, timeout_s=options.reconnect_timeout_s
        )

    @property
    def read_up_to(self) -> session_pb2.TurnCursor:
        """How far the turn has been read."""
        return self._transcript.cursor

    async def __anext__(self) -> session_pb2.TurnEvent:
        """Returns the next event.

        Raises:
            TurnRestarted: the answer was started again and is another.
            ServerError: the turn was refused, or the server is lost for too long.
        """
        while not self._unread:
            if self._transcript.ended:
                raise StopAsyncIteration
            try:
                event = await anext(self._events, None)
                if event is None:
                    raise _broken_off(self._turn_id)
                self._unread.extend(self._transcript.take(event))
                self._outage.end()
            except Gap as gap:
                raise events_missing(gap) from None
            except ServerError as error:
                if not passes(error):
                    raise
                await self._outage.wait(error)
                self._events = self._call(self._transcript.cursor)
        news = self._unread.popleft()
        if isinstance(news, TurnRestarted):
            raise news
        return news


def _broken_off(turn_id: str) -> ServerError:
    return error_of(
        ErrorDetails(
            code=grpc.StatusCode.CANCELLED,
            message=f"the events of the turn {turn_id} ended before the turn",
        )
    )
