"""The calls on sessions and turns that need no stream of their own."""

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import suppress
from uuid import uuid4

from antiphon.v1 import session_pb2, session_pb2_grpc
from google.protobuf import field_mask_pb2

from antiphon_client.archive import Archive, archive_lines
from antiphon_client.channel import Connection, told
from antiphon_client.errors import ServerError
from antiphon_client.followed import FollowedTurn
from antiphon_client.prompts import Says, items_of
from antiphon_client.turn import Turn


class SessionCalls:
    """Creates, reads, changes and deletes sessions, and reads, runs and cancels their turns.

    Mutations carry a request id, so that a retry is safe. Every method raises ServerError.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._stub = session_pb2_grpc.SessionServiceStub(connection.channel)

    async def create(
        self,
        settings: session_pb2.Session | None = None,
        *,
        session_id: str = "",
        items: Says = (),
    ) -> session_pb2.Session:
        """Creates a session; `items` are the start of its history."""
        request = creation(settings, session_id=session_id, items=items)
        return await self._connection.unary(self._stub.CreateSession, request)

    async def get(self, name: str) -> session_pb2.Session:
        """Returns `sessions/{session}` as it stands."""
        return await self._connection.unary(
            self._stub.GetSession, session_pb2.GetSessionRequest(name=name)
        )

    async def list(
        self, labels: Mapping[str, str] | None = None
    ) -> AsyncIterator[session_pb2.Session]:
        """Yields the sessions that carry all these labels, latest creation first."""
        token = ""
        while True:
            request = session_pb2.ListSessionsRequest(labels=labels, page_token=token)
            page = await self._connection.unary(self._stub.ListSessions, request)
            for session in page.sessions:
                yield session
            token = page.next_page_token
            if not token:
                return

    async def update(
        self, session: session_pb2.Session, fields: Iterable[str]
    ) -> session_pb2.Session:
        """Changes these fields to their values in `session`; with an etag, only if it holds."""
        request = session_pb2.UpdateSessionRequest(
            session=session,
            update_mask=field_mask_pb2.FieldMask(paths=fields),
            request_id=str(uuid4()),
        )
        return await self._connection.unary(self._stub.UpdateSession, request)

    async def delete(self, name: str, *, etag: str = "") -> None:
        """Cancels a running turn and deletes the session; with an etag, only if it holds."""
        request = session_pb2.DeleteSessionRequest(name=name, etag=etag)
        await self._connection.unary(self._stub.DeleteSession, request)

    async def fork(
        self, name: str, *, turn_name: str = "", session_id: str = ""
    ) -> session_pb2.Session:
        """Makes a session that shares the history up to this turn; default: the last completed."""
        request = session_pb2.ForkSessionRequest(
            name=name, turn=turn_name, session_id=session_id, request_id=str(uuid4())
        )
        return await self._connection.unary(self._stub.ForkSession, request)

    async def rewind(
        self,
        name: str,
        to: session_pb2.HistoryPoint,
        *,
        etag: str = "",
        cancel_active: bool = False,
    ) -> session_pb2.Session:
        """Takes the session back to a place in its history; see `after` and `beginning`."""
        request = session_pb2.RewindSessionRequest(
            name=name, to=to, etag=etag, cancel_active=cancel_active, request_id=str(uuid4())
        )
        return await self._connection.unary(self._stub.RewindSession, request)

    async def append_turn(self, name: str, says: Says, *, turn_id: str = "") -> session_pb2.Turn:
        """Adds items to the history without asking for an answer, and without a stream."""
        append = session_pb2.AppendItems(items=items_of(says), turn_id=turn_id or uuid4().hex)
        request = session_pb2.AppendTurnRequest(session=name, append=append)
        return await self._connection.unary(self._stub.AppendTurn, request)

    def run_turn(self, name: str, turn: session_pb2.StartTurn) -> Turn:
        """Starts a turn of `sessions/{session}` without attaching to it and returns its news.

        Where the call breaks, the turn is followed to its end by further calls. Leaving the turn
        unread ends the call; the turn then goes by its `on_disconnect`.
        """
        request = session_pb2.RunTurnRequest(session=name, turn=turn)
        if not turn.turn_id:
            request.turn.turn_id = uuid4().hex
        turn_name = f"{name}/turns/{request.turn.turn_id}"

        def call(cursor: session_pb2.TurnCursor) -> AsyncIterator[session_pb2.TurnEvent]:
            if cursor.sequence:
                return self._events(turn_name, cursor)
            # It may not have been accepted. If it was, its id makes this the same turn.
            metadata = self._connection.metadata
            return told(self._stub.RunTurn(request, metadata=metadata))

        return self._followed(turn_name, session_pb2.TurnCursor(), call)

    def stream_turn_events(
        self, turn_name: str, cursor: session_pb2.TurnCursor | None = None
    ) -> Turn:
        """Follows `sessions/{session}/turns/{turn}` from a cursor, or its start, to its end.

        Leaving it unread leaves the turn alone.
        """

        def call(cursor: session_pb2.TurnCursor) -> AsyncIterator[session_pb2.TurnEvent]:
            return self._events(turn_name, cursor)

        return self._followed(turn_name, cursor or session_pb2.TurnCursor(), call)

    async def cancel_turn(
        self, turn_name: str, *, discard_partial: bool = False
    ) -> session_pb2.Turn:
        """Stops `sessions/{session}/turns/{turn}` and returns it once it has ended."""
        request = session_pb2.CancelTurnRequest(name=turn_name, discard_partial=discard_partial)
        return await self._connection.unary(self._stub.CancelTurn, request)

    async def get_turn(self, turn_name: str) -> session_pb2.Turn:
        """Returns `sessions/{session}/turns/{turn}` with its input and output."""
        return await self._connection.unary(
            self._stub.GetTurn, session_pb2.GetTurnRequest(name=turn_name)
        )

    async def list_turns(
        self,
        name: str,
        *,
        newest_first: bool = False,
        show_all: bool = False,
        page_size: int = 0,
    ) -> AsyncIterator[session_pb2.Turn]:
        """Yields a session's turns; with `show_all` also failed and superseded ones.

        They are fetched `page_size` at a time, from 1 to 1000; 0: as many as the server likes.
        """
        token = ""
        while True:
            request = session_pb2.ListTurnsRequest(
                session=name,
                page_token=token,
                page_size=page_size,
                newest_first=newest_first,
                show_all=show_all,
            )
            page = await self._connection.unary(self._stub.ListTurns, request)
            for turn in page.turns:
                yield turn
            token = page.next_page_token
            if not token:
                return

    async def export(self, name: str) -> AsyncIterator[str]:
        """Yields `sessions/{session}` with its history as lines of text; see `archive`."""
        session = await self.get(name)
        async for line in archive_lines(session, self.list_turns(name)):
            yield line

    async def restore(self, archive: Archive, *, session_id: str = "") -> session_pb2.Session:
        """Makes a session with an exported one's settings and history, and returns it.

        The history comes as items: what was generated is there as text, not as token ids.
        A session that could not be made whole is deleted again.
        """
        parts = archive.parts()
        session = await self.create(archive.settings, session_id=session_id, items=next(parts, ()))
        try:
            for part in parts:
                await self.append_turn(session.name, part)
        except ServerError:
            with suppress(ServerError):
                await self.delete(session.name)
            raise
        return await self.get(session.name)

    def _events(
        self, turn_name: str, cursor: session_pb2.TurnCursor
    ) -> AsyncIterator[session_pb2.TurnEvent]:
        request = session_pb2.StreamTurnEventsRequest(
            name=turn_name, after_sequence=cursor.sequence, epoch=cursor.epoch
        )
        metadata = self._connection.metadata
        return told(self._stub.StreamTurnEvents(request, metadata=metadata))

    def _followed(
        self,
        turn_name: str,
        cursor: session_pb2.TurnCursor,
        call: Callable[[session_pb2.TurnCursor], AsyncIterator[session_pb2.TurnEvent]],
    ) -> Turn:
        turn_id = turn_name.rpartition("/")[2]
        begin = session_pb2.TurnCursor(
            turn_id=turn_id, epoch=cursor.epoch, sequence=cursor.sequence
        )

        async def cancel(discard_partial: bool) -> None:
            await self.cancel_turn(turn_name, discard_partial=discard_partial)

        news = FollowedTurn(self._connection, begin, call)
        return Turn(turn_id, news=news, cancel=cancel)


def creation(
    settings: session_pb2.Session | None, *, session_id: str, items: Says
) -> session_pb2.CreateSessionRequest:
    """Returns the request that creates such a session, safe to send again."""
    return session_pb2.CreateSessionRequest(
        session_id=session_id,
        session=settings,
        items=items_of(items),
        request_id=str(uuid4()),
    )
