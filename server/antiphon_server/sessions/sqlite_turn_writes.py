"""The writes to the tables of turns and their contents. Each runs inside a transaction."""

import sqlite3
from dataclasses import dataclass

from antiphon_server.sessions.records import (
    COMPLETED,
    SUPERSEDED,
    SessionKey,
    TurnRow,
)
from antiphon_server.sessions.sqlite_rows import (
    ORDER_COLUMNS,
    PLACE_COLUMNS,
    TOKEN_COLUMNS,
    order_cells,
    place_cells,
    token_cells,
)
from antiphon_server.sessions.sqlite_threads import store_unavailable

_OF_SESSION = "tenant = ? AND session_id = ?"


@dataclass(frozen=True, slots=True)
class TurnWrites:
    """Writes in the name of one server, to sessions that are its own."""

    owner: str
    epoch: int

    def insert(self, connection: sqlite3.Connection, key: SessionKey, row: TurnRow) -> None:
        """Adds a turn with its content."""
        content = connection.execute(
            f"INSERT INTO contents (turn, {TOKEN_COLUMNS}) VALUES (?,?,?,?,?)",
            (row.turn.SerializeToString(), *token_cells(row.tokens)),
        )
        connection.execute(
            f"INSERT INTO turns ({PLACE_COLUMNS}, {ORDER_COLUMNS}, content_key, owner, epoch)"
            " VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?)",
            (
                *place_cells(key, row),
                *order_cells(row.order),
                content.lastrowid,
                self.owner,
                self.epoch,
            ),
        )

    def end(self, connection: sqlite3.Connection, key: SessionKey, row: TurnRow) -> None:
        """Puts down what came of a turn, which is not shared yet and needs no order any more."""
        place = (key.tenant, key.session_id, row.position)
        changed = connection.execute(
            "UPDATE contents SET turn = ?, head_ids = ?, head_digest = ?, added_ids = ?,"
            " output_ids = ? WHERE content_key ="
            f" (SELECT content_key FROM turns WHERE {_OF_SESSION} AND position = ?)",
            (row.turn.SerializeToString(), *token_cells(row.tokens), *place),
        )
        if changed.rowcount != 1:
            raise store_unavailable(f"{key.turn_name(row.turn_id)} is not in it any more")
        connection.execute(
            "UPDATE turns SET state = ?, version = ?, request = NULL, accepted = NULL, owner = ?,"
            f" epoch = ? WHERE {_OF_SESSION} AND position = ?",
            (row.turn.state, row.version, self.owner, self.epoch, *place),
        )
        connection.execute(f"DELETE FROM checkpoints WHERE {_OF_SESSION} AND position = ?", place)

    def supersede(self, connection: sqlite3.Connection, key: SessionKey, *, after: int) -> None:
        """Takes the turns behind a position out of the history."""
        connection.execute(
            f"UPDATE turns SET state = {SUPERSEDED}, owner = ?, epoch = ? WHERE {_OF_SESSION}"
            f" AND state = {COMPLETED} AND position > ?",
            (self.owner, self.epoch, key.tenant, key.session_id, after),
        )

    def share(
        self, connection: sqlite3.Connection, parent: SessionKey, key: SessionKey, *, up_to: int
    ) -> None:
        """Gives a session the history of another up to a position; the contents are the same."""
        connection.execute(
            f"INSERT INTO turns ({PLACE_COLUMNS}, content_key, owner, epoch)"
            " SELECT ?, ?, position, turn_id, state, version, generates, continues, fingerprint,"
            f" content_key, ?, ? FROM turns WHERE {_OF_SESSION} AND state = {COMPLETED}"
            " AND position <= ?",
            (
                *(key.tenant, key.session_id, self.owner, self.epoch),
                *(parent.tenant, parent.session_id, up_to),
            ),
        )
