"""The calls on sessions and turns that need no stream of their own."""

from collections.abc import AsyncIterator, Iterable, Mapping
from uuid import uuid4

from antiphon.v1 import session_pb2, session_pb2_grpc
from google.protobuf import field_mask_pb2

from antiphon_client.channel import Connection, told
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
        request = self.creation(settings, session_id=session_id, items=items)
        return await self._connection.unary(self._stub.CreateSession, request)

    def creation(
        self, settings: session_pb2.Session | None, *, session_id: str, items: Says
    ) -> session_pb2.CreateSessionRequest:
        """Returns the request that creates such a session, safe to send again."""
        return session_pb2.CreateSessionRequest(
            session_id=session_id,
            session=settings,
            items=items_of(items),
            request_id=str(uuid4()),
        )

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

    def run_turn(self, name: str, turn: session_pb2.StartTurn) -> Turn:
        """Starts a turn of `sessions/{session}` without attaching to it and returns its news.

        Leaving the turn unread ends the call; the turn then goes by its `on_disconnect`.
        """
        request = session_pb2.RunTurnRequest(session=name, turn=turn)
        if not turn.turn_id:
            request.turn.turn_id = uuid4().hex
        events = told(self._stub.RunTurn(request, metadata=self._connection.metadata))

        async def cancel(discard_partial: bool) -> None:
            turn_name = f"{name}/turns/{request.turn.turn_id}"
            await self.cancel_turn(turn_name, discard_partial=discard_partial)

        return Turn(request.turn.turn_id, events=events, cancel=cancel)

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
        self, name: str, *, newest_first: bool = False, show_all: bool = False
    ) -> AsyncIterator[session_pb2.Turn]:
        """Yields a session's turns; with `show_all` also failed and superseded ones."""
        token = ""
        while True:
            request = session_pb2.ListTurnsRequest(
                session=name, page_token=token, newest_first=newest_first, show_all=show_all
            )
            page = await self._connection.unary(self._stub.ListTurns, request)
            for turn in page.turns:
                yield turn
            token = page.next_page_token
            if not token:
                return
