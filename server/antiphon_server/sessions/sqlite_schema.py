"""The SQLite file's tables, and how a file comes to have them."""

import contextlib
import sqlite3
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from antiphon_engine.api.errors import StartupError
from antiphon_server.sessions.sqlite_threads import DAMAGE

APPLICATION_ID: Final = 0x416E7470
"""Marks the file as ours."""

# As the file format of SQLite has them.
_MAGIC: Final = b"SQLite format 3\0"
_HEADER_BYTES: Final = 100
_APPLICATION_ID: Final = slice(68, 72)

MIGRATIONS: Final[Sequence[str]] = (
    """
    CREATE TABLE fence (epoch INTEGER NOT NULL) STRICT;
    INSERT INTO fence VALUES (0);
    CREATE TABLE sessions (
      tenant TEXT NOT NULL,
      session_id TEXT NOT NULL,
      create_ns INTEGER NOT NULL,
      idle_since_ns INTEGER NOT NULL,
      expire_ns INTEGER,
      version INTEGER NOT NULL,
      session BLOB NOT NULL,
      owner TEXT NOT NULL,
      epoch INTEGER NOT NULL,
      PRIMARY KEY (tenant, session_id)
    ) STRICT;
    CREATE INDEX sessions_by_creation ON sessions (tenant, create_ns, session_id);
    CREATE INDEX sessions_by_expiry ON sessions (expire_ns) WHERE expire_ns IS NOT NULL;
    CREATE TABLE labels (
      tenant TEXT NOT NULL,
      session_id TEXT NOT NULL,
      key TEXT NOT NULL,
      value TEXT NOT NULL,
      PRIMARY KEY (tenant, session_id, key),
      FOREIGN KEY (tenant, session_id) REFERENCES sessions ON DELETE CASCADE
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE turns (
      tenant TEXT NOT NULL,
      session_id TEXT NOT NULL,
      position INTEGER NOT NULL,
      turn_id TEXT NOT NULL,
      state INTEGER NOT NULL,
      generates INTEGER NOT NULL,
      fingerprint BLOB NOT NULL,
      turn BLOB NOT NULL,
      head_ids BLOB,
      head_digest BLOB NOT NULL,
      added_ids BLOB NOT NULL,
      output_ids BLOB NOT NULL,
      owner TEXT NOT NULL,
      epoch INTEGER NOT NULL,
      PRIMARY KEY (tenant, session_id, position),
      UNIQUE (tenant, session_id, turn_id),
      FOREIGN KEY (tenant, session_id) REFERENCES sessions ON DELETE CASCADE
    ) STRICT;
    CREATE INDEX turns_unfinished ON turns (state) WHERE state IN (1, 2);
    CREATE TABLE expired (
      tenant TEXT NOT NULL,
      session_id TEXT NOT NULL,
      expire_ns INTEGER NOT NULL,
      PRIMARY KEY (tenant, session_id)
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE receipts (
      tenant TEXT NOT NULL,
      request_id TEXT NOT NULL,
      fingerprint BLOB NOT NULL,
      create_ns INTEGER NOT NULL,
      answer BLOB NOT NULL,
      PRIMARY KEY (tenant, request_id)
    ) STRICT, WITHOUT ROWID;
    """,
    "ALTER TABLE turns ADD COLUMN version INTEGER NOT NULL DEFAULT 0;",
    # A turn's place in a session apart from its content, which forks share.
    """
    CREATE TABLE contents (
      content_key INTEGER PRIMARY KEY,
      turn BLOB NOT NULL,
      head_ids BLOB,
      head_digest BLOB NOT NULL,
      added_ids BLOB NOT NULL,
      output_ids BLOB NOT NULL
    ) STRICT;
    INSERT INTO contents
      SELECT rowid, turn, head_ids, head_digest, added_ids, output_ids FROM turns;
    DROP INDEX turns_unfinished;
    ALTER TABLE turns RENAME TO whole_turns;
    CREATE TABLE turns (
      tenant TEXT NOT NULL,
      session_id TEXT NOT NULL,
      position INTEGER NOT NULL,
      turn_id TEXT NOT NULL,
      state INTEGER NOT NULL,
      version INTEGER NOT NULL,
      generates INTEGER NOT NULL,
      continues INTEGER NOT NULL,
      fingerprint BLOB NOT NULL,
      request BLOB,
      accepted BLOB,
      content_key INTEGER NOT NULL REFERENCES contents,
      owner TEXT NOT NULL,
      epoch INTEGER NOT NULL,
      PRIMARY KEY (tenant, session_id, position),
      UNIQUE (tenant, session_id, turn_id),
      FOREIGN KEY (tenant, session_id) REFERENCES sessions ON DELETE CASCADE
    ) STRICT;
    INSERT INTO turns
      SELECT tenant, session_id, position, turn_id, state, version, generates, 0, fingerprint,
        NULL, NULL, rowid, owner, epoch FROM whole_turns;
    DROP TABLE whole_turns;
    CREATE INDEX turns_unfinished ON turns (state) WHERE state IN (1, 2);
    CREATE INDEX turns_by_content ON turns (content_key);
    CREATE TRIGGER contents_unused AFTER DELETE ON turns
      WHEN NOT EXISTS (SELECT 1 FROM turns WHERE content_key = OLD.content_key)
      BEGIN DELETE FROM contents WHERE content_key = OLD.content_key; END;
    """,
    # How far turns are that have not ended; what is new is a row more.
    """
    CREATE TABLE checkpoints (
      tenant TEXT NOT NULL,
      session_id TEXT NOT NULL,
      position INTEGER NOT NULL,
      num_attempts INTEGER NOT NULL,
      head_ids BLOB,
      head_digest BLOB NOT NULL,
      added_ids BLOB NOT NULL,
      PRIMARY KEY (tenant, session_id, position),
      FOREIGN KEY (tenant, session_id, position) REFERENCES turns ON DELETE CASCADE
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE checkpoint_parts (
      tenant TEXT NOT NULL,
      session_id TEXT NOT NULL,
      position INTEGER NOT NULL,
      first_token INTEGER NOT NULL,
      output_ids BLOB NOT NULL,
      logprobs BLOB NOT NULL,
      PRIMARY KEY (tenant, session_id, position, first_token),
      FOREIGN KEY (tenant, session_id, position) REFERENCES checkpoints ON DELETE CASCADE
    ) STRICT;
    """,
    # What the sessions of each tenant take up, contents that forks share once.
    """
    CREATE TABLE stored (
      tenant TEXT PRIMARY KEY,
      size_bytes INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID;
    INSERT INTO stored
      SELECT tenant, sum(size) FROM (
        SELECT tenant, length(session) AS size FROM sessions
        UNION ALL
        SELECT min(turns.tenant), length(turn) + coalesce(length(head_ids), 0)
            + length(added_ids) + length(output_ids)
          FROM contents JOIN turns USING (content_key) GROUP BY content_key
      ) GROUP BY tenant;
    CREATE TRIGGER stored_with_session AFTER INSERT ON sessions BEGIN
      INSERT INTO stored VALUES (NEW.tenant, length(NEW.session))
        ON CONFLICT (tenant) DO UPDATE SET size_bytes = size_bytes + excluded.size_bytes;
    END;
    CREATE TRIGGER stored_with_new_session AFTER UPDATE OF session ON sessions BEGIN
      UPDATE stored SET size_bytes = size_bytes + length(NEW.session) - length(OLD.session)
        WHERE tenant = NEW.tenant;
    END;
    CREATE TRIGGER stored_without_session AFTER DELETE ON sessions BEGIN
      UPDATE stored SET size_bytes = size_bytes - length(OLD.session) WHERE tenant = OLD.tenant;
    END;
    CREATE TRIGGER stored_with_turn AFTER INSERT ON turns
      WHEN NOT EXISTS (
        SELECT 1 FROM turns WHERE content_key = NEW.content_key AND rowid <> NEW.rowid)
    BEGIN
      UPDATE stored SET size_bytes = size_bytes + (
          SELECT length(turn) + coalesce(length(head_ids), 0) + length(added_ids)
            + length(output_ids) FROM contents WHERE content_key = NEW.content_key)
        WHERE tenant = NEW.tenant;
    END;
    CREATE TRIGGER stored_with_output
      AFTER UPDATE OF turn, head_ids, added_ids, output_ids ON contents
    BEGIN
      UPDATE stored SET size_bytes = size_bytes + length(NEW.turn)
          + coalesce(length(NEW.head_ids), 0) + length(NEW.added_ids) + length(NEW.output_ids)
          - length(OLD.turn) - coalesce(length(OLD.head_ids), 0) - length(OLD.added_ids)
          - length(OLD.output_ids)
        WHERE tenant = (SELECT tenant FROM turns WHERE content_key = NEW.content_key LIMIT 1);
    END;
    CREATE TRIGGER stored_without_turn BEFORE DELETE ON turns
      WHEN NOT EXISTS (
        SELECT 1 FROM turns WHERE content_key = OLD.content_key AND rowid <> OLD.rowid)
    BEGIN
      UPDATE stored SET size_bytes = size_bytes - (
          SELECT length(turn) + coalesce(length(head_ids), 0) + length(added_ids)
            + length(output_ids) FROM contents WHERE content_key = OLD.content_key)
        WHERE tenant = OLD.tenant;
    END;
    """,
    # What is remembered for each tenant's retries; a row costs as much beside its answer.
    """
    CREATE INDEX receipts_by_age ON receipts (tenant, create_ns);
    CREATE TABLE remembered (
      tenant TEXT PRIMARY KEY,
      size_bytes INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID;
    INSERT INTO remembered SELECT tenant, sum(length(answer) + 256) FROM receipts GROUP BY tenant;
    CREATE TRIGGER remembered_with_receipt AFTER INSERT ON receipts BEGIN
      INSERT INTO remembered VALUES (NEW.tenant, length(NEW.answer) + 256)
        ON CONFLICT (tenant) DO UPDATE SET size_bytes = size_bytes + excluded.size_bytes;
    END;
    CREATE TRIGGER remembered_without_receipt AFTER DELETE ON receipts BEGIN
      UPDATE remembered SET size_bytes = size_bytes - length(OLD.answer) - 256
        WHERE tenant = OLD.tenant;
    END;
    """,
)
"""Entry i takes a file from version i to i + 1. Released entries never change."""


def prepare(connection: sqlite3.Connection, path: Path) -> int:
    """Brings a file to this version and returns the new fencing epoch.

    Raises:
        StartupError: the file is not a session store, or a later version wrote it.
    """
    version = _checked_version(connection, path)
    try:
        return _migrate(connection, version)
    except DAMAGE as error:
        raise StartupError(f"{path} can't be written as a session store: {error}") from error


def check_place(path: Path) -> None:
    """Checks that a store can be at a path: nothing, an empty file or a store is there.

    Writes nothing, there or beside it, so it comes before all that does. What only the write-ahead
    log beside the file tells is left to `prepare`.

    Raises:
        StartupError: a folder, a file of another kind or another program's database is there.
    """
    try:
        kind = path.stat().st_mode
        if stat.S_ISDIR(kind):
            raise StartupError(f"store.path: {path} is a folder; name a file in it (--store)")
        if not stat.S_ISREG(kind):
            raise StartupError(f"store.path: {path} is no regular file; name another (--store)")
        with path.open("rb") as file:
            header = file.read(_HEADER_BYTES)
    except FileNotFoundError:
        return
    except OSError as error:
        raise StartupError(f"{path} can't be used as a session store: {error}") from error
    if header and not header.startswith(_MAGIC):
        raise StartupError(
            f"{path} can't be used as a session store: it is a file of another kind; name another"
            " (--store)"
        )
    if header and int.from_bytes(header[_APPLICATION_ID], "big") != APPLICATION_ID:
        _check_unmarked(path)


def _check_unmarked(path: Path) -> None:
    """Checks a database whose file doesn't say that it is a store; ours is empty until it does."""
    uri = f"{path.absolute().as_uri()}?mode=ro&immutable=1"  # Not even a lock is made beside it.
    try:
        with contextlib.closing(sqlite3.connect(uri, uri=True)) as connection:
            _checked_version(connection, path)
    except DAMAGE as error:
        raise StartupError(f"{path} can't be used as a session store: {error}") from error


def check_is_store(connection: sqlite3.Connection, path: Path) -> None:
    """Checks that a file is a session store of a version that is known. Raises StartupError."""
    if _checked_version(connection, path) == 0:
        raise StartupError(f"{path} is an empty file, and no session store")


def _checked_version(connection: sqlite3.Connection, path: Path) -> int:
    try:
        application_id = _pragma(connection, "application_id")
        version = _pragma(connection, "user_version")
        has_tables = _has_tables(connection)
    except DAMAGE as error:
        raise StartupError(f"{path} can't be used as a session store: {error}") from error
    if application_id not in (0, APPLICATION_ID) or (application_id == 0 and has_tables):
        raise StartupError(f"{path} is a database of another program; name another store.path")
    if version > len(MIGRATIONS):
        raise StartupError(
            f"{path} was written by a later release (schema {version}, this one knows up to"
            f" {len(MIGRATIONS)}); start that release, or name another store.path"
        )
    return version


def bound_size(connection: sqlite3.Connection, max_bytes: int) -> None:
    """Lets the file grow to a size at most; 0: as far as the disk does."""
    if max_bytes:
        max_pages = max(1, max_bytes // _pragma(connection, "page_size"))
        connection.execute(f"PRAGMA max_page_count = {max_pages}")


def _migrate(connection: sqlite3.Connection, version: int) -> int:
    for number in range(version, len(MIGRATIONS)):
        connection.executescript(
            f"BEGIN IMMEDIATE;{MIGRATIONS[number]}"
            f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {number + 1}; COMMIT;"
        )
    (epoch,) = connection.execute("UPDATE fence SET epoch = epoch + 1 RETURNING epoch").fetchone()
    return int(epoch)


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    return int(connection.execute(f"PRAGMA {name}").fetchone()[0])


def _has_tables(connection: sqlite3.Connection) -> bool:
    return connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchone() is not None
