"""Where sessions are kept: the seam between sessions and a durable store."""

from collections.abc import Sequence
from typing import Protocol

from antiphon.v1 import session_pb2

from antiphon_server.sessions.records import (
    Checkpoint,
    NewSession,
    Receipt,
    Rewound,
    SessionKey,
    SessionQuery,
    SessionRow,
    TurnQuery,
    TurnRow,
)

RECEIPT_LIFETIME_NS = 24 * 3600 * 1_000_000_000
"""How long a request id is remembered."""


class SessionStore(Protocol):
    """Keeps sessions durably. What a write returned from survives a crash.

    Appends carry the owner and the fencing epoch that this store was opened with: one of an older
    epoch is refused, so that a server that was given up can't write behind its successor's back.
    Every call raises AntiphonError, STORE_UNAVAILABLE, where the store can't be read or written.
    Called from the event loop.
    """

    @property
    def epoch(self) -> int:
        """The fencing epoch: larger than that of every server before."""

    @property
    def writable(self) -> bool:
        """Whether the last write got there; false: all fail until there is room, or a right."""

    async def create_session(self, new: NewSession) -> session_pb2.Session | None:
        """Keeps a session with its first turns, or returns the answer to an earlier try.

        Turns that it shares with another session are kept once, as long as either is there.

        Raises:
            AntiphonError: ID_TAKEN, also for a request id that came with other content;
                QUOTA_EXCEEDED.
        """

    async def find_answer(self, receipt: Receipt) -> session_pb2.Session | None:
        """Returns what the same request was answered before, if it was.

        Raises:
            AntiphonError: ID_TAKEN for a request id that came with other content.
        """

    async def update_session(self, row: SessionRow, receipt: Receipt | None) -> None:
        """Replaces a session.

        Raises:
            AntiphonError: ID_TAKEN for a request id that came with other content.
        """

    async def delete_session(self, key: SessionKey) -> None:
        """Forgets a session and all its turns."""

    async def expire_session(self, key: SessionKey, expire_ns: int) -> bool:
        """Forgets a session that expires then, and all its turns, and remembers that it was there.

        Returns:
            Whether it was: it may have another time by now, or be another under the same id.
        """

    async def accept_turn(
        self, key: SessionKey, row: TurnRow, *, max_stored_bytes: int = 0
    ) -> None:
        """Keeps a turn that is to run.

        Args:
            key: Its session.
            row: The turn.
            max_stored_bytes: Beyond it the tenant may not keep more; 0: no limit.

        Raises:
            AntiphonError: QUOTA_EXCEEDED.
        """

    async def end_turn(
        self, turn: TurnRow, session: SessionRow, *, superseded_after: int | None = None
    ) -> None:
        """Replaces a turn, and its session, together.

        Args:
            turn: As it ended.
            session: As it is then.
            superseded_after: The position behind which, up to the turn, none is in the history
                any more.
        """

    async def keep_checkpoint(self, key: SessionKey, position: int, checkpoint: Checkpoint) -> bool:
        """Adds to what is kept of a turn that runs.

        Returns:
            Whether it is kept: not where the turn has ended or is gone, or is another server's.
        """

    async def read_checkpoint(self, key: SessionKey, position: int) -> Checkpoint | None:
        """Returns how far a turn is that has not ended, if that is known."""

    async def rewind_session(self, rewound: Rewound) -> None:
        """Takes a session back in its history; the turns behind are superseded.

        Raises:
            AntiphonError: ID_TAKEN for a request id that came with other content.
        """

    async def read_session(self, key: SessionKey) -> SessionRow | None:
        """Returns a session, if it is there."""

    async def read_expired(self, key: SessionKey) -> int | None:
        """Returns when a session expired (ns), if it was there and did."""

    async def list_sessions(self, query: SessionQuery) -> Sequence[SessionRow]:
        """Returns a page of sessions."""

    async def read_turn(self, key: SessionKey, turn_id: str) -> TurnRow | None:
        """Returns a turn, if it is there."""

    async def list_turns(self, query: TurnQuery) -> Sequence[TurnRow]:
        """Returns a page of turns, without their tokens."""

    async def read_history(self, key: SessionKey, *, up_to: int | None = None) -> Sequence[TurnRow]:
        """Returns the turns of a session's history, oldest first; up to a position, if given."""

    async def read_turns_before(self, key: SessionKey, row: TurnRow) -> Sequence[TurnRow]:
        """Returns the history that a turn stands on, oldest first; also of superseded turns."""

    async def count_history(self, key: SessionKey, up_to: int) -> int:
        """Returns how many turns a session's history has up to a position."""

    async def read_last_position(self, key: SessionKey) -> int:
        """Returns the position of a session's latest turn; 0: it has none."""

    async def list_unfinished(self) -> Sequence[tuple[SessionKey, TurnRow]]:
        """Returns the turns that have not ended, with their orders; in order for each session."""

    async def list_expired(self, now_ns: int, limit: int) -> Sequence[SessionRow]:
        """Returns sessions whose time is over."""

    async def forget_receipts(self, before_ns: int, expired_before_ns: int) -> None:
        """Forgets request ids and expired sessions that are older than that."""

    async def count_sessions(self) -> int:
        """Returns how many sessions there are, over all tenants."""

    async def close(self) -> None:
        """Ends what waits and lets go of the store."""
