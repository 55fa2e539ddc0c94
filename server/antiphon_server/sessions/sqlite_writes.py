"""The writes to the SQLite tables. Each runs inside a transaction, in the writer's thread."""

import sqlite3
from dataclasses import dataclass

from antiphon.v1 import session_pb2

from antiphon_engine.api.errors import AntiphonError, ErrorReason
from antiphon_server.sessions.records import (
    COMPLETED,
    Fork,
    NewSession,
    Receipt,
    Rewound,
    SessionKey,
    SessionRow,
    TurnRow,
)
from antiphon_server.sessions.sqlite_quotas import check_num_sessions, check_stored
from antiphon_server.sessions.sqlite_receipts import find_answer, write_receipt
from antiphon_server.sessions.sqlite_rows import (
    SESSION_COLUMNS,
    session_cells,
)
from antiphon_server.sessions.sqlite_threads import store_unavailable
from antiphon_server.sessions.sqlite_turn_writes import TurnWrites


@dataclass(frozen=True, slots=True)
class Writes:
    """Writes in the name of one server."""

    owner: str
    epoch: int

    @property
    def turns(self) -> TurnWrites:
        """Writes to turns alone."""
        return TurnWrites(self.owner, self.epoch)

    def create(self, connection: sqlite3.Connection, new: NewSession) -> session_pb2.Session | None:
        """See SessionStore.create_session."""
        key = new.row.key
        if new.receipt and (answer := find_answer(connection, new.receipt)):
            return answer
        if _exists(connection, key):
            raise AntiphonError(
                ErrorReason.ID_TAKEN,
                f"The session id {key.session_id!r} is taken; choose another.",
                metadata={"session": key.name},
            )
        check_num_sessions(connection, new)
        check_stored(connection, key.tenant, new.max_stored_bytes)
        connection.execute(
            "DELETE FROM expired WHERE tenant = ? AND session_id = ?", (key.tenant, key.session_id)
        )
        connection.execute(
            f"INSERT INTO sessions ({SESSION_COLUMNS}, owner, epoch) VALUES (?,?,?,?,?,?,?,?,?)",
            (*session_cells(new.row), self.owner, self.epoch),
        )
        _write_labels(connection, new.row)
        if new.first_turn:
            self.turns.insert(connection, key, new.first_turn)
        if new.fork and new.fork.position:
            _check_fork(connection, new.fork)
            self.turns.share(connection, new.fork.parent, key, up_to=new.fork.position)
        write_receipt(connection, new.receipt)
        return None

    def update(
        self, connection: sqlite3.Connection, row: SessionRow, receipt: Receipt | None
    ) -> None:
        """See SessionStore.update_session."""
        if receipt is not None:
            # Another session's update may have taken the id since the caller looked.
            find_answer(connection, receipt)
        self._replace_session(connection, row)
        connection.execute(
            "DELETE FROM labels WHERE tenant = ? AND session_id = ?",
            (row.key.tenant, row.key.session_id),
        )
        _write_labels(connection, row)
        write_receipt(connection, receipt)

    def delete(self, connection: sqlite3.Connection, key: SessionKey) -> None:
        """See SessionStore.delete_session."""
        self._claim(connection, key)
        connection.execute(
            "DELETE FROM sessions WHERE tenant = ? AND session_id = ?", (key.tenant, key.session_id)
        )

    def expire(self, connection: sqlite3.Connection, key: SessionKey, expire_ns: int) -> bool:
        """See SessionStore.expire_session."""
        found = connection.execute(
            "SELECT expire_ns FROM sessions WHERE tenant = ? AND session_id = ?",
            (key.tenant, key.session_id),
        ).fetchone()
        if found != (expire_ns,):
            return False
        self.delete(connection, key)
        connection.execute(
            "INSERT OR REPLACE INTO expired VALUES (?, ?, ?)",
            (key.tenant, key.session_id, expire_ns),
        )
        return True

    def accept_turn(self, connection: sqlite3.Connection, key: SessionKey, row: TurnRow) -> None:
        """See SessionStore.accept_turn."""
        self._claim(connection, key)
        self.turns.insert(connection, key, row)

    def end_turn(
        self,
        connection: sqlite3.Connection,
        turn: TurnRow,
        session: SessionRow,
        superseded_after: int | None,
    ) -> None:
        """See SessionStore.end_turn."""
        self._replace_session(connection, session)
        if superseded_after is not None:
            # The turn itself is not in the history yet.
            self.turns.supersede(connection, session.key, after=superseded_after)
        self.turns.end(connection, session.key, turn)

    def rewind(self, connection: sqlite3.Connection, rewound: Rewound) -> None:
        """See SessionStore.rewind_session."""
        if rewound.receipt is not None:
            find_answer(connection, rewound.receipt)
        self._replace_session(connection, rewound.row)
        self.turns.supersede(connection, rewound.row.key, after=rewound.position)
        write_receipt(connection, rewound.receipt)

    def _replace_session(self, connection: sqlite3.Connection, row: SessionRow) -> None:
        self._claim(connection, row.key)
        _, _, *cells = session_cells(row)
        connection.execute(
            "UPDATE sessions SET create_ns = ?, idle_since_ns = ?, expire_ns = ?, version = ?,"
            " session = ? WHERE tenant = ? AND session_id = ?",
            (*cells, row.key.tenant, row.key.session_id),
        )

    def _claim(self, connection: sqlite3.Connection, key: SessionKey) -> None:
        """Makes the session this server's, unless a later one has it."""
        changed = connection.execute(
            "UPDATE sessions SET owner = ?, epoch = ?"
            " WHERE tenant = ? AND session_id = ? AND epoch <= ?",
            (self.owner, self.epoch, key.tenant, key.session_id, self.epoch),
        )
        if changed.rowcount == 0:
            raise store_unavailable(f"{key.name} is gone or belongs to a server started later")


def _exists(connection: sqlite3.Connection, key: SessionKey) -> bool:
    found = connection.execute(
        "SELECT 1 FROM sessions WHERE tenant = ? AND session_id = ?", (key.tenant, key.session_id)
    )
    return found.fetchone() is not None


def _check_fork(connection: sqlite3.Connection, fork: Fork) -> None:
    """Checks that what is to be shared is still there: a rewind or an end may have come first."""
    found = connection.execute(
        "SELECT 1 FROM turns WHERE tenant = ? AND session_id = ? AND position = ?"
        f" AND state = {COMPLETED}",
        (fork.parent.tenant, fork.parent.session_id, fork.position),
    )
    if found.fetchone() is None:
        raise store_unavailable(f"the history of {fork.parent.name} has changed meanwhile")


def _write_labels(connection: sqlite3.Connection, row: SessionRow) -> None:
    connection.executemany(
        "INSERT INTO labels VALUES (?, ?, ?, ?)",
        [
            (row.key.tenant, row.key.session_id, label, value)
            for label, value in row.session.labels.items()
        ],
    )
