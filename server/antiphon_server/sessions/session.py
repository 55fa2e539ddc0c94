"""One loaded session: takes turns in, lets a stream drive it, changes and goes."""

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from antiphon.v1.session_pb2 import HistoryPoint, RewindSessionRequest, Session
from antiphon.v1.types_pb2 import GoAway
from google.protobuf.duration_pb2 import Duration

from antiphon_engine.api.errors import AntiphonError, ErrorReason
from antiphon_server.answer_size import check_answer_size
from antiphon_server.served_models import find_model
from antiphon_server.sessions.absences import Absences
from antiphon_server.sessions.attachment import Attachment, AttachmentRequest, Attachments
from antiphon_server.sessions.cache_hints import tell_closed, tell_rewound
from antiphon_server.sessions.call_arguments import check_call_arguments
from antiphon_server.sessions.cleared_defaults import without_defaults
from antiphon_server.sessions.event_log import EventLog
from antiphon_server.sessions.failures import cancelled_failure
from antiphon_server.sessions.history_points import find_turn
from antiphon_server.sessions.ledger import Ledger
from antiphon_server.sessions.names import session_not_found
from antiphon_server.sessions.records import (
    Receipt,
    SessionKey,
)
from antiphon_server.sessions.residency import residency_of
from antiphon_server.sessions.session_rows import (
    SMALLER_SESSION,
    check_etag,
    present,
)
from antiphon_server.sessions.surroundings import Surroundings
from antiphon_server.sessions.turn import LiveTurn
from antiphon_server.sessions.turn_constraint import check_turn_constraint
from antiphon_server.sessions.turn_logs import TurnLogs
from antiphon_server.sessions.turn_queue import TurnQueue
from antiphon_server.sessions.turn_records import begin_record
from antiphon_server.sessions.turn_request import TurnRequest
from antiphon_server.telemetry.request_record import StageKind
from antiphon_server.times import to_timestamp
from antiphon_server.validation import (
    check_config,
    check_items_offered,
    check_tool_choice,
    merge_config,
)


@dataclass(frozen=True, slots=True)
class StartedTurn:
    """A turn that was taken in, now or before."""

    turn_id: str
    log: EventLog
    live: LiveTurn | None
    """None: it has ended."""


class LiveSession:
    """One session while something is done with it. Used on one event loop."""

    def __init__(self, ledger: Ledger, surroundings: Surroundings) -> None:
        self.num_uses = 0
        """Calls that hold it in memory."""
        self._ledger = ledger
        self._surroundings = surroundings
        self._queue = TurnQueue(ledger, surroundings)
        self._entry = asyncio.Lock()
        self._closing: AntiphonError | None = None
        self._draining: AntiphonError | None = None
        self.logs: Final = TurnLogs(ledger, self._queue, surroundings)
        """Where its turns' events are."""
        self._attachments = Attachments(
            self.key,
            max_watchers=surroundings.limits.max_watchers,
            wall_ns=surroundings.clock.wall_ns,
        )
        self._absences = Absences(self.cancel_live, surroundings.limits.reconnect_grace_s)
        ledger.on_change = self._attachments.note_change

    @property
    def key(self) -> SessionKey:
        """What tells it apart."""
        return self._ledger.row.key

    @property
    def ledger(self) -> Ledger:
        """What is kept of it."""
        return self._ledger

    @property
    def active(self) -> bool:
        """Whether it has turns that have not ended."""
        return bool(self._queue.live)

    @property
    def live_turns(self) -> list[LiveTurn]:
        """Its turns that have not ended, in order."""
        return self._queue.live

    @property
    def idle(self) -> bool:
        """Whether it may be let go of."""
        return not (self.active or self.num_uses or self._attachments)

    def present(self) -> Session:
        """Returns it as callers see it, but for its residency."""
        return present(self._ledger.row, active=self.active)

    async def present_with_residency(self) -> Session:
        """Returns it as callers see it."""
        residency = await residency_of(self._ledger, self._surroundings)
        session = self.present()
        session.residency.CopyFrom(residency)
        return session

    def attach(self, request: AttachmentRequest) -> Attachment:
        """Lets a stream in. Raises AntiphonError, SESSION_ATTACHED or OVERLOADED."""
        self.check_open()
        return self._attachments.attach(request)

    def detach(self, attachment: Attachment) -> None:
        """Takes the session back from a stream. Its turns go on."""
        self._attachments.detach(attachment)

    def note_leaving(self, turn_id: str) -> None:
        """Says that a stream that told of a turn has gone, before it had told of its end."""
        if live := self._queue.find(turn_id):
            self._absences.note_leaving(live)

    async def start_turn(
        self, request: TurnRequest, *, attachment: Attachment | None = None
    ) -> StartedTurn:
        """Takes a turn in, or finds it where it was taken in before; returns once it is durable.

        Args:
            request: What is asked.
            attachment: The stream that asks, if it drives the session.

        Raises:
            AntiphonError: the turn was refused, and leaves no trace.
        """
        now_ns = self._surroundings.clock.monotonic_ns
        received_ns = now_ns()
        async with self._entry:
            known = await self._find_known(request)
            check_ns, is_held = now_ns(), False
            if known is None and request.generates:
                is_held = await check_turn_constraint(
                    request, self._ledger.row.session, self._surroundings.models
                )
            elif known is None:
                await check_call_arguments(
                    request.items, f"{request.path}.items", self._surroundings.offload
                )
            live = known.live if known else self._enter(request, received_ns)
            if live is not None and is_held:
                live.recorder.add_stage(StageKind.CONSTRAINT_CHECK, check_ns, checked="constraint")
            if live is not None and attachment is not None:
                attachment.own_turn_ids.add(live.turn_id)
        if live is None:
            assert known is not None
            return known
        try:
            await asyncio.shield(live.accepted)
        except AntiphonError:
            if attachment is not None:
                attachment.own_turn_ids.discard(live.turn_id)
            raise
        except asyncio.CancelledError:
            self._absences.note_leaving(live)
            raise
        return StartedTurn(live.turn_id, live.log, live)

    def take_up(self, turn: LiveTurn) -> None:
        """Takes in a turn that an earlier server accepted; its place is known already."""
        if turn.request.interrupts:
            # What was delivered of those before went with that server: all that is kept stays.
            for earlier in self._queue.live:
                self._queue.cancel(earlier, discards=False)
        self._queue.take_up(turn)
        self._absences.note_leaving(turn)

    async def cancel_turn(self, turn_id: str, *, discards: bool) -> LiveTurn | None:
        """Stops a turn; None: it has ended already. Its log tells when it has.

        Raises:
            AntiphonError: TURN_NOT_FOUND.
        """
        live = self._queue.find(turn_id)
        if live is None:
            await self.logs.check_known(turn_id)
            return None
        self._queue.cancel(live, discards=discards)
        return live

    def cancel_live(self, turn: LiveTurn) -> None:
        """Stops a turn whose caller has gone, and keeps what it generated."""
        if self._queue.find(turn.turn_id) is turn:
            self._queue.cancel(turn, discards=False)

    async def update(
        self, change: Callable[[Session], None], *, etag: str, receipt: Receipt | None
    ) -> Session:
        """Changes the session's own values.

        Args:
            change: Changes a copy of the session.
            etag: If not empty, what must still hold.
            receipt: Makes a retry answer as the first time; its answer is filled in here.

        Raises:
            AntiphonError: STALE_HEAD, STORE_UNAVAILABLE, or ID_TAKEN for the request id.
        """
        async with self._ledger.lock:
            if receipt and (answer := await self._surroundings.store.find_answer(receipt)):
                return answer
            self.check_open()
            check_etag(self._ledger.row, etag)
            session = Session()
            session.CopyFrom(self._ledger.row.session)
            change(session)
            row = self._ledger.changed(session)
            told = present(row, active=self.active)
            check_answer_size(told, hint=SMALLER_SESSION)
            await self._ledger.replace_row(row, receipt and replace(receipt, answer=told))
        return told

    async def rewind(self, request: RewindSessionRequest, receipt: Receipt | None) -> Session:
        """Takes the session back to a place in its history.

        Args:
            request: What is asked, its fields checked.
            receipt: Makes a retry answer as the first time; its answer is filled in here.

        Raises:
            AntiphonError: STALE_HEAD, SESSION_BUSY, TURN_NOT_FOUND, STORE_UNAVAILABLE; ID_TAKEN for
                the request id; INVALID_FIELD where the place isn't in the history.
        """
        # No turn may come between the end of those that run and the rewind.
        async with self._entry:
            if receipt and (answer := await self._surroundings.store.find_answer(receipt)):
                return answer
            self.check_open()
            check_etag(self._ledger.row, request.etag)
            if request.cancel_active:
                await self._check_reachable(request.to)
                await self._queue.end_all(cancelled_failure("The session was rewound."))
            self._queue.check_idle()
            with self.told_as_gone():
                async with self._ledger.lock:
                    self.check_open()
                    base = await self._ledger.base_at(request.to, path="to")
                    row = self._ledger.rewound(base)
                    told = present(row, active=False)
                    await self._ledger.rewind(row, base, receipt and replace(receipt, answer=told))
            tell_rewound(self._surroundings, row, base.history.num_tokens)
        return told

    async def _check_reachable(self, point: HistoryPoint) -> None:
        """Checks, before turns are stopped for it, that a place is in the history or may be."""
        named = point.turn.rpartition("/")[2]
        if point.WhichOneof("point") == "turn" and self._queue.find(named) is None:
            await find_turn(self._surroundings, self.key, point.turn, path="to.turn")

    def drain(self, error: AntiphonError, time_left: Duration) -> None:
        """Takes no more turns and asks streams to end; turns that are there go on."""
        self._draining = error
        away = GoAway(reason=GoAway.REASON_DRAINING, time_left=time_left)
        self._attachments.send_away(away, error)

    @contextlib.contextmanager
    def told_as_gone(self) -> Iterator[None]:
        """Has what fails in the block fail as its end, where that came meanwhile."""
        try:
            yield
        except AntiphonError:
            self.check_open()
            raise

    async def stop(self, error: AntiphonError) -> None:
        """Takes no more turns, and leaves those that it has to the next server."""
        self._closing = error
        await self._queue.leave()

    async def delete(self, etag: str) -> None:
        """Deletes it, turns and all. Raises AntiphonError, STALE_HEAD or STORE_UNAVAILABLE."""
        self.check_open()
        check_etag(self._ledger.row, etag)
        self._closing = gone = session_not_found(self.key)
        await self._queue.end_all(cancelled_failure("The session was deleted."))
        try:
            # Other changes come before it, or find it gone.
            async with self._ledger.lock:
                await self._surroundings.store.delete_session(self.key)
        except AntiphonError:
            self._closing = None
            raise
        tell_closed(self._surroundings, self._ledger.row)
        self.tell_gone(gone)

    def check_open(self) -> None:
        """Checks that it has not gone. Raises AntiphonError."""
        if self._closing is not None:
            raise self._closing

    def tell_gone(self, error: AntiphonError) -> None:
        """Ends the streams on it, once they have told of its turns."""
        self._closing = error
        self._attachments.send_away(GoAway(reason=GoAway.REASON_SESSION_GONE), error)

    async def _find_known(self, request: TurnRequest) -> StartedTurn | None:
        """Returns the turn that has the request's id. Raises AntiphonError, ID_TAKEN."""
        turn_id = request.turn_id
        if not turn_id:
            return None
        live = self._queue.find(turn_id)
        row = None if live else await self._surroundings.store.read_turn(self.key, turn_id)
        # It may have ended, or begun, while the store was read; entries are one at a time.
        known = live.request.fingerprint if live else row.fingerprint if row else None
        if known is None:
            return None
        if known != request.fingerprint:
            name = self.key.turn_name(turn_id)
            raise AntiphonError(
                ErrorReason.ID_TAKEN,
                f"{name} is another turn, with other content; choose another turn_id.",
                metadata={"turn": name},
            )
        if live is not None:
            return StartedTurn(turn_id, live.log, live)
        assert row is not None
        return StartedTurn(turn_id, await self.logs.of_row(row), None)

    def _enter(self, request: TurnRequest, received_ns: int) -> LiveTurn:
        """Checks a new turn against the session, and queues it."""
        self.check_open()
        if self._draining is not None:
            raise self._draining
        self._queue.check_room(request)
        session = self._ledger.row.session
        model = find_model(self._surroundings.models, session.model)
        check_items_offered(request.items, model.capabilities, f"{request.path}.items")
        self._queue.check_calls(request)
        turn = LiveTurn(
            request,
            turn_id=request.turn_id or self._surroundings.draws.draw_id(),
            position=self._ledger.next_position(),
            epoch=self._surroundings.store.epoch,
            max_undelivered_bytes=self._surroundings.limits.max_undelivered_bytes,
        )
        if request.generates:
            self._queue.check_answerable(request)
            defaults = without_defaults(session.defaults, request.cleared_defaults)
            turn.config = merge_config(defaults, request.config)
            if not turn.config.sampling.HasField("seed"):
                # Drawn here, so that a turn that is run again says the same.
                turn.config.sampling.seed = self._surroundings.draws.draw_seed()
            check_config(turn.config, model=model, path=f"{request.path}.config")
            check_tool_choice(turn.config, session.tools, f"{request.path}.config")
        turn.instructions = session.instructions
        turn.tools = tuple(session.tools)
        turn.received_ns = received_ns
        if request.timeout_ns is not None:
            turn.deadline_ns = turn.received_ns + request.timeout_ns
        begin_record(turn, self.key, model=session.model, surroundings=self._surroundings)
        turn.message.name = self.key.turn_name(turn.turn_id)
        turn.message.create_time.CopyFrom(to_timestamp(self._surroundings.clock.wall_ns()))
        quotas = self._surroundings.tenancy.quotas
        turn.place = quotas.enter(self.key.tenant, queued=self.active)
        if request.interrupts:
            self._queue.interrupt()
        self._queue.add(turn)
        self._attachments.note_turn(turn)
        return turn
