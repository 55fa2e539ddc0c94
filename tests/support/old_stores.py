"""Session stores as earlier releases wrote them."""

import sqlite3
from collections.abc import Iterable, Sequence
from pathlib import Path

from antiphon_server.sessions.records import SessionKey, SessionRow, TurnRow
from antiphon_server.sessions.sqlite_schema import APPLICATION_ID, MIGRATIONS

_SESSION = """
    INSERT INTO sessions (tenant, session_id, create_ns, idle_since_ns, expire_ns, version, session,
      owner, epoch)
    VALUES (?, ?, ?, ?, ?, ?, ?, 'earlier', 1)
"""
_TURN = """
    INSERT INTO turns (tenant, session_id, position, turn_id, state, generates, fingerprint, turn,
      head_ids, head_digest, added_ids, output_ids, owner, epoch)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 'earlier', 1)
"""


def write_old_store(
    path: Path, schema: int, turns: Iterable[tuple[SessionRow, Sequence[TurnRow]]]
) -> None:
    """Writes a file of schema 1 or 2, by that release's own statements."""
    with sqlite3.connect(path) as file:
        for script in MIGRATIONS[:schema]:
            file.executescript(script)
        file.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        file.execute(f"PRAGMA user_version = {schema}")
        file.execute("UPDATE fence SET epoch = 1")
        for session, rows in turns:
            file.execute(_SESSION, _session_cells(session))
            for row in rows:
                file.execute(_TURN, _turn_cells(session.key, row))
                if schema > 1:
                    file.execute(
                        "UPDATE turns SET version = ? WHERE turn_id = ?",
                        (row.version, row.turn_id),
                    )
    file.close()


def _session_cells(row: SessionRow) -> tuple[object, ...]:
    key, times = row.key, (row.create_ns, row.idle_since_ns, row.expire_ns)
    return (key.tenant, key.session_id, *times, row.version, row.session.SerializeToString())


def _turn_cells(key: SessionKey, row: TurnRow) -> tuple[object, ...]:
    tokens = row.tokens
    return (
        *(key.tenant, key.session_id, row.position, row.turn_id, row.turn.state),
        *(int(row.generates), row.fingerprint, row.turn.SerializeToString()),
        None if tokens.head_ids is None else tokens.head_ids.tobytes(),
        *(tokens.head_digest, tokens.added_ids.tobytes(), tokens.output_ids.tobytes()),
    )
