"""Turns that an earlier server left, by a crash or because it was told to stop."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from itertools import groupby
from typing import Final

import structlog
from antiphon.v1.session_pb2 import StartTurn

from antiphon_engine.api.errors import AntiphonError
from antiphon_server.sessions.failures import mark_stopped, server_stopped
from antiphon_server.sessions.records import Checkpoint, SessionKey, TurnOrder, TurnRow, TurnTokens
from antiphon_server.sessions.session import LiveSession
from antiphon_server.sessions.session_rows import behind_turn
from antiphon_server.sessions.surroundings import Surroundings
from antiphon_server.sessions.turn import LiveTurn
from antiphon_server.sessions.turn_records import begin_record
from antiphon_server.sessions.turn_request import Frame, TurnRequest, read_append, read_start_turn
from antiphon_server.status import to_failure
from antiphon_server.telemetry.request_record import RequestEventKind
from antiphon_server.times import NS_PER_S, to_ns, to_timestamp

_log = structlog.get_logger(__name__)

_FRAME: Final = Frame(path="turn")


class Recovery:
    """Takes up again, in order, what was accepted and has not ended."""

    def __init__(
        self, surroundings: Surroundings, load: Callable[[SessionKey], Awaitable[LiveSession]]
    ) -> None:
        """Sets where turns come from, and what loads a session."""
        self._surroundings = surroundings
        self._load = load

    async def run(self) -> None:
        """Takes up all that is left. Raises AntiphonError, STORE_UNAVAILABLE."""
        left = await self._surroundings.store.list_unfinished()
        for key, rows in groupby(left, key=lambda entry: entry[0]):
            await self._take_up_session(key, [row for _, row in rows])

    async def _take_up_session(self, key: SessionKey, rows: list[TurnRow]) -> None:
        readable: list[tuple[TurnRow, TurnOrder, TurnRequest]] = []
        for row in rows:
            try:
                readable.append((row, *_read_order(row)))
            except AntiphonError as error:
                await self._fail(key, row, error)
        if not readable:
            return
        session = await self._load(key)
        may_have_run = True
        for row, order, request in readable:
            turn = self._turn_of(key, row, order, request)
            turn.earlier = await self._earlier(key, row, may_have_run=may_have_run)
            model = session.ledger.row.session.model
            begin_record(turn, key, model=model, surroundings=self._surroundings)
            turn.recorder.note(RequestEventKind.RECOVERED)
            session.take_up(turn)
            may_have_run = False

    def _turn_of(
        self, key: SessionKey, row: TurnRow, order: TurnOrder, request: TurnRequest
    ) -> LiveTurn:
        clock = self._surroundings.clock
        turn = LiveTurn(
            replace(request, turn_id=row.turn_id, fingerprint=row.fingerprint),
            turn_id=row.turn_id,
            position=row.position,
            epoch=self._surroundings.store.epoch,
            max_undelivered_bytes=self._surroundings.limits.max_undelivered_bytes,
        )
        turn.instructions = order.accepted.instructions
        turn.tools = tuple(order.accepted.tools)
        turn.config = order.accepted.defaults
        # Its time ran on while no server was there.
        age_ns = max(0, clock.wall_ns() - to_ns(row.turn.create_time))
        turn.received_ns = clock.monotonic_ns() - age_ns
        if request.timeout_ns is not None:
            turn.deadline_ns = turn.received_ns + request.timeout_ns
        turn.message.name = key.turn_name(row.turn_id)
        turn.message.create_time.CopyFrom(row.turn.create_time)
        return turn

    async def _earlier(self, key: SessionKey, row: TurnRow, *, may_have_run: bool) -> Checkpoint:
        """Returns how far a turn was; only a session's first can have run."""
        found = None
        if may_have_run and row.generates:
            try:
                found = await self._surroundings.store.read_checkpoint(key, row.position)
            except AntiphonError as error:
                # Then it runs from its start, and says the same.
                _log.warning("checkpoint lost", turn=key.turn_name(row.turn_id), cause=str(error))
        return found or Checkpoint(num_attempts=int(may_have_run), tokens=TurnTokens())

    async def _fail(self, key: SessionKey, row: TurnRow, error: AntiphonError) -> None:
        """Ends a turn that can't be run: nobody knows how, or this release doesn't take it."""
        session = await self._surroundings.store.read_session(key)
        assert session is not None, "a turn has a session"
        now_ns = self._surroundings.clock.wall_ns()
        mark_stopped(row.turn, to_failure(error))
        row.turn.end_time.CopyFrom(to_timestamp(now_ns))
        row.turn.epoch = self._surroundings.store.epoch
        ttl_ns = int(self._surroundings.limits.idle_ttl_s * NS_PER_S)
        ended = behind_turn(session, head=None, now_ns=now_ns, default_ttl_ns=ttl_ns)
        await self._surroundings.store.end_turn(row, ended)


def _read_order(row: TurnRow) -> tuple[TurnOrder, TurnRequest]:
    """Returns what a turn is to do. Raises AntiphonError."""
    if row.order is None:
        raise server_stopped()
    request = row.order.request
    if isinstance(request, StartTurn):
        return row.order, read_start_turn(request, _FRAME)
    return row.order, read_append(request, _FRAME)
