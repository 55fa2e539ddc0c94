"""The durable side of one loaded session: its row and its history, changed one thing at a time."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from antiphon.v1.session_pb2 import HistoryPoint, Session, Turn, TurnCompleted
from antiphon.v1.types_pb2 import Failure

from antiphon_server.sessions.history import History
from antiphon_server.sessions.history_points import Base, base_at
from antiphon_server.sessions.records import Receipt, Rewound, SessionRow
from antiphon_server.sessions.session_rows import Head, behind_turn, changed, etag_of, stale_head
from antiphon_server.sessions.surroundings import Surroundings
from antiphon_server.sessions.turn import LiveTurn
from antiphon_server.sessions.turn_generation import Outcome
from antiphon_server.sessions.turn_request import TurnRequest
from antiphon_server.times import NS_PER_S, to_timestamp


class Ledger:
    """What is kept of a session. Memory changes only behind the store, so the two agree."""

    def __init__(
        self, row: SessionRow, history: History, surroundings: Surroundings, *, last_position: int
    ) -> None:
        self.row = row
        self.history = history
        self.lock: Final = asyncio.Lock()
        """Held over a change of the row."""
        self.on_change: Callable[[str], None] = lambda turn_id: None
        """Told behind every change: the id of the turn that made it, or nothing."""
        self._last_position = last_position
        self._surroundings = surroundings

    def next_position(self) -> int:
        """Returns the place of the next turn."""
        self._last_position += 1
        return self._last_position

    def check_head(self, expected: HistoryPoint | None) -> None:
        """Checks what a turn expects of the history. Raises AntiphonError, STALE_HEAD."""
        head = self.row.session.head_turn
        if expected is not None and expected.turn != head:
            is_now = f"the head is {head}" if head else "the session has no turns"
            was = expected.turn or "the start"
            raise stale_head(self.row, f"The turn expected {was} as the head; {is_now}.")

    async def base_of(self, request: TurnRequest) -> Base:
        """Returns what a turn that starts now stands on.

        Raises:
            AntiphonError: STALE_HEAD, or the request names a place that is not there.
        """
        self.check_head(request.expected_head)
        if request.rewind_to is None:
            session = self.row.session
            return Base(
                history=self.history, head_turn=session.head_turn, num_turns=session.num_turns
            )
        return await self.base_at(request.rewind_to, path=f"{request.path}.rewind_to")

    async def base_at(self, point: HistoryPoint, *, path: str) -> Base:
        """Returns what stands up to a place in the history. Raises AntiphonError."""
        return await base_at(self._surroundings, self.row, point, path=path)

    async def complete(self, turn: LiveTurn, outcome: Outcome, base: Base) -> TurnCompleted:
        """Puts a turn behind what it stands on; returns its terminal event once that is durable.

        Raises:
            AntiphonError: STORE_UNAVAILABLE; nothing has changed.
        """
        now_ns = self._surroundings.clock.wall_ns()
        message = Turn()
        message.CopyFrom(turn.message)
        message.state = Turn.STATE_COMPLETED
        message.end_time.CopyFrom(to_timestamp(now_ns))
        message.last_sequence = turn.log.last_sequence + 1
        if outcome.output is not None:
            message.output.CopyFrom(outcome.output)
        async with self.lock:
            head = Head(message.name, base.num_turns + 1)
            row = self._behind_turn(head, now_ns)
            kept = replace(turn.row(message), version=row.version, tokens=outcome.tokens)
            await self._surroundings.store.end_turn(kept, row, superseded_after=base.rewound_to)
            self.row = row
            self.history = base.history.after(kept)
        turn.message.CopyFrom(message)
        completed = TurnCompleted()
        completed.CopyFrom(outcome.completed)
        completed.etag = etag_of(row)
        completed.kept_sequence = outcome.completed.kept_sequence or message.last_sequence
        self.on_change(turn.turn_id)
        return completed

    async def fail(self, turn: LiveTurn, failure: Failure) -> None:
        """Marks a turn as failed. Raises AntiphonError, STORE_UNAVAILABLE; nothing has changed."""
        now_ns = self._surroundings.clock.wall_ns()
        message = turn.snapshot()
        message.state = Turn.STATE_FAILED
        message.failure.CopyFrom(failure)
        message.end_time.CopyFrom(to_timestamp(now_ns))
        message.last_sequence = turn.log.last_sequence + 1
        is_discarded = turn.discards or turn.interrupted_at is not None
        said = message.output
        if is_discarded or not (said.text or said.reasoning or said.tool_calls):
            message.ClearField("output")
        async with self.lock:
            row = self._behind_turn(None, now_ns)
            await self._surroundings.store.end_turn(turn.row(message), row)
            self.row = row
        turn.message.CopyFrom(message)
        self.on_change(turn.turn_id)

    async def replace_row(self, row: SessionRow, receipt: Receipt | None) -> None:
        """Changes the session's own values, under the lock. Raises AntiphonError."""
        assert self.lock.locked()
        await self._surroundings.store.update_session(row, receipt)
        self.row = row
        self.on_change("")

    def changed(self, session: Session) -> SessionRow:
        """Returns the row as a change would make it."""
        return changed(
            self.row,
            session,
            now_ns=self._surroundings.clock.wall_ns(),
            default_ttl_ns=self._default_ttl_ns,
        )

    def rewound(self, base: Base) -> SessionRow:
        """Returns the row as going back to a place would make it."""
        session = Session()
        session.CopyFrom(self.row.session)
        session.head_turn = base.head_turn
        session.num_turns = base.num_turns
        return self.changed(session)

    async def rewind(self, row: SessionRow, base: Base, receipt: Receipt | None) -> None:
        """Takes the session back in its history, under the lock. Raises AntiphonError."""
        assert self.lock.locked()
        assert base.rewound_to is not None
        rewound = Rewound(row=row, position=base.rewound_to, receipt=receipt)
        await self._surroundings.store.rewind_session(rewound)
        self.row = row
        self.history = base.history
        self.on_change("")

    def _behind_turn(self, head: Head | None, now_ns: int) -> SessionRow:
        return behind_turn(self.row, head=head, now_ns=now_ns, default_ttl_ns=self._default_ttl_ns)

    @property
    def _default_ttl_ns(self) -> int:
        return int(self._surroundings.limits.idle_ttl_s * NS_PER_S)
