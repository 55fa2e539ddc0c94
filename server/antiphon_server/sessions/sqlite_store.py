"""Sessions in one SQLite file."""

import asyncio
import contextlib
import fcntl
import os
import sqlite3
from collections.abc import Sequence
from pathlib import Path

from antiphon.v1 import session_pb2
from google.protobuf.message import DecodeError

from antiphon_engine.api.errors import StartupError
from antiphon_server.sessions import sqlite_schema
from antiphon_server.sessions.checkpoint_batches import CheckpointBatches
from antiphon_server.sessions.file_place import FilePlace
from antiphon_server.sessions.records import (
    COMPLETED,
    QUEUED,
    RUNNING,
    SUPERSEDED,
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
from antiphon_server.sessions.sqlite_checkpoints import TurnCheckpoint, read_checkpoint
from antiphon_server.sessions.sqlite_quotas import check_stored
from antiphon_server.sessions.sqlite_receipts import find_answer
from antiphon_server.sessions.sqlite_rows import (
    ORDER_COLUMNS,
    SESSION_COLUMNS,
    TOKEN_COLUMNS,
    TURN_COLUMNS,
    Cell,
    fetch,
    to_session,
    to_turn,
    to_unfinished,
)
from antiphon_server.sessions.sqlite_threads import DAMAGE, Reader, Writer
from antiphon_server.sessions.sqlite_writes import Writes
from antiphon_server.sessions.write_health import WriteHealth

_OF_SESSION = "tenant = ? AND session_id = ?"
_TURNS = "turns JOIN contents USING (content_key)"


class SqliteStore:
    """A SessionStore in a file that one server uses at a time."""

    def __init__(self, connections: "_Connections", *, writes: Writes) -> None:
        self._lock_fd = connections.lock_fd
        self._writer = Writer(connections.write, connections.place)
        self._reader = Reader(connections.read)
        self._writes = writes
        self._checkpoints = CheckpointBatches(self._writer, epoch=writes.epoch)

    @classmethod
    def open(cls, path: Path, *, synchronous: str, owner: str, max_bytes: int = 0) -> "SqliteStore":
        """Opens the file, and makes it where it is not there. Blocks; for start-up.

        Args:
            path: The file; its folder is made too.
            synchronous: `full` survives a power cut, `normal` a crash of the server.
            owner: This server, as the rows that it writes name it.
            max_bytes: The most that the file may take; 0: what the disk has.

        Raises:
            StartupError: the file can't be used, or another server uses it.
        """
        connections = _Connections.open(path)
        try:
            connections.write.execute(f"PRAGMA synchronous = {synchronous.upper()}")
            epoch = sqlite_schema.prepare(connections.write, path)
            sqlite_schema.bound_size(connections.write, max_bytes)
        except StartupError:
            connections.close()
            raise
        except DAMAGE as error:
            connections.close()
            raise StartupError(f"{path} can't be used as a session store: {error}") from error
        return cls(connections, writes=Writes(owner, epoch))

    @property
    def epoch(self) -> int:
        """See SessionStore."""
        return self._writes.epoch

    @property
    def writable(self) -> bool:
        """See SessionStore."""
        return self.health.writable

    @property
    def health(self) -> WriteHealth:
        """Whether writes reach the file."""
        return self._writer.health

    async def create_session(self, new: NewSession) -> session_pb2.Session | None:
        """See SessionStore."""
        return await self._writer.run(lambda file: self._writes.create(file, new))

    async def find_answer(self, receipt: Receipt) -> session_pb2.Session | None:
        """See SessionStore."""
        return await self._reader.run(lambda file: find_answer(file, receipt))

    async def update_session(self, row: SessionRow, receipt: Receipt | None) -> None:
        """See SessionStore."""
        await self._writer.run(lambda file: self._writes.update(file, row, receipt))

    async def delete_session(self, key: SessionKey) -> None:
        """See SessionStore."""
        await self._writer.run(lambda file: self._writes.delete(file, key))

    async def expire_session(self, key: SessionKey, expire_ns: int) -> bool:
        """See SessionStore."""
        return await self._writer.run(lambda file: self._writes.expire(file, key, expire_ns))

    async def accept_turn(
        self, key: SessionKey, row: TurnRow, *, max_stored_bytes: int = 0
    ) -> None:
        """See SessionStore."""

        def accept(file: sqlite3.Connection) -> None:
            check_stored(file, key.tenant, max_stored_bytes)
            self._writes.accept_turn(file, key, row)

        await self._writer.run(accept)

    async def end_turn(
        self, turn: TurnRow, session: SessionRow, *, superseded_after: int | None = None
    ) -> None:
        """See SessionStore."""
        await self._writer.run(
            lambda file: self._writes.end_turn(file, turn, session, superseded_after)
        )

    async def keep_checkpoint(self, key: SessionKey, position: int, checkpoint: Checkpoint) -> bool:
        """See SessionStore."""
        return await self._checkpoints.keep(
            TurnCheckpoint(key=key, position=position, checkpoint=checkpoint)
        )

    async def read_checkpoint(self, key: SessionKey, position: int) -> Checkpoint | None:
        """See SessionStore."""
        return await self._reader.run(lambda file: read_checkpoint(file, key, position))

    async def rewind_session(self, rewound: Rewound) -> None:
        """See SessionStore."""
        await self._writer.run(lambda file: self._writes.rewind(file, rewound))

    async def read_session(self, key: SessionKey) -> SessionRow | None:
        """See SessionStore."""
        rows = await self._read_sessions(_OF_SESSION, (key.tenant, key.session_id))
        return rows[0] if rows else None

    async def read_expired(self, key: SessionKey) -> int | None:
        """See SessionStore."""
        sql = f"SELECT expire_ns FROM expired WHERE {_OF_SESSION}"
        return await self._read_integer(sql, (key.tenant, key.session_id))

    async def list_sessions(self, query: SessionQuery) -> Sequence[SessionRow]:
        """See SessionStore."""
        condition, cells = "tenant = ?", [query.tenant]
        parameters: list[Cell] = [*cells]
        if query.before is not None:
            condition += " AND (create_ns, session_id) < (?, ?)"
            parameters += query.before
        for key, value in sorted(query.labels.items()):
            condition += (
                " AND EXISTS (SELECT 1 FROM labels WHERE labels.tenant = sessions.tenant"
                " AND labels.session_id = sessions.session_id AND key = ? AND value = ?)"
            )
            parameters += (key, value)
        condition += " ORDER BY create_ns DESC, session_id DESC LIMIT ?"
        return await self._read_sessions(condition, [*parameters, query.limit])

    async def read_turn(self, key: SessionKey, turn_id: str) -> TurnRow | None:
        """See SessionStore."""
        rows = await self._read_turns(
            f"{TURN_COLUMNS}, {TOKEN_COLUMNS}",
            f"{_OF_SESSION} AND turn_id = ?",
            (key.tenant, key.session_id, turn_id),
        )
        return rows[0] if rows else None

    async def list_turns(self, query: TurnQuery) -> Sequence[TurnRow]:
        """See SessionStore."""
        key = query.key
        condition = _OF_SESSION
        cells: list[Cell] = [key.tenant, key.session_id]
        if not query.show_all:
            condition += f" AND state IN ({QUEUED}, {RUNNING}, {COMPLETED})"
        if query.after_position is not None:
            condition += f" AND position {'<' if query.newest_first else '>'} ?"
            cells.append(query.after_position)
        condition += f" ORDER BY position {'DESC' if query.newest_first else 'ASC'} LIMIT ?"
        return await self._read_turns(TURN_COLUMNS, condition, [*cells, query.limit])

    async def read_history(self, key: SessionKey, *, up_to: int | None = None) -> Sequence[TurnRow]:
        """See SessionStore."""
        return await self._read_turns(
            f"{TURN_COLUMNS}, {TOKEN_COLUMNS}",
            f"{_OF_SESSION} AND state = {COMPLETED} AND (? IS NULL OR position <= ?)"
            " ORDER BY position",
            (key.tenant, key.session_id, up_to, up_to),
        )

    async def read_turns_before(self, key: SessionKey, row: TurnRow) -> Sequence[TurnRow]:
        """See SessionStore."""
        rows = await self._read_turns(
            f"{TURN_COLUMNS}, {TOKEN_COLUMNS}",
            f"{_OF_SESSION} AND state IN ({COMPLETED}, {SUPERSEDED}) AND position < ?"
            " ORDER BY position DESC",
            (key.tenant, key.session_id, row.position),
        )
        before: list[TurnRow] = []
        parent = row.turn.parent_turn
        for earlier in rows:
            if earlier.turn.name == parent:
                before.append(earlier)
                parent = earlier.turn.parent_turn
        return before[::-1]

    async def count_history(self, key: SessionKey, up_to: int) -> int:
        """See SessionStore."""
        sql = (
            f"SELECT count(*) FROM turns WHERE {_OF_SESSION} AND state = {COMPLETED}"
            " AND position <= ?"
        )
        return await self._read_integer(sql, (key.tenant, key.session_id, up_to)) or 0

    async def read_last_position(self, key: SessionKey) -> int:
        """See SessionStore."""
        sql = f"SELECT max(position) FROM turns WHERE {_OF_SESSION}"
        return await self._read_integer(sql, (key.tenant, key.session_id)) or 0

    async def list_unfinished(self) -> Sequence[tuple[SessionKey, TurnRow]]:
        """See SessionStore."""
        sql = (
            f"SELECT {TURN_COLUMNS}, {ORDER_COLUMNS} FROM {_TURNS}"
            f" WHERE state IN ({QUEUED}, {RUNNING}) ORDER BY tenant, session_id, position"
        )

        def read(file: sqlite3.Connection) -> list[tuple[SessionKey, TurnRow]]:
            return [to_unfinished(row) for row in fetch(file, sql, ())]

        return await self._reader.run(read)

    async def list_expired(self, now_ns: int, limit: int) -> Sequence[SessionRow]:
        """See SessionStore; rows that are damaged stay, and keep no others."""
        sql = f"SELECT {SESSION_COLUMNS} FROM sessions WHERE expire_ns <= ? ORDER BY expire_ns"

        def read(file: sqlite3.Connection) -> list[SessionRow]:
            found: list[SessionRow] = []
            for cells in file.execute(sql, (now_ns,)):
                with contextlib.suppress(DecodeError):
                    found.append(to_session(cells))
                if len(found) == limit:
                    break
            return found

        return await self._reader.run(read)

    async def forget_receipts(self, before_ns: int, expired_before_ns: int) -> None:
        """See SessionStore."""

        def forget(file: sqlite3.Connection) -> None:
            file.execute("DELETE FROM receipts WHERE create_ns < ?", (before_ns,))
            file.execute("DELETE FROM expired WHERE expire_ns < ?", (expired_before_ns,))

        await self._writer.run(forget)

    async def count_sessions(self) -> int:
        """See SessionStore."""
        return await self._read_integer("SELECT count(*) FROM sessions", ()) or 0

    async def close(self) -> None:
        """See SessionStore."""
        await self._reader.close()
        await self._checkpoints.close()
        await self._writer.close()
        await asyncio.to_thread(os.close, self._lock_fd)

    async def _read_sessions(self, condition: str, cells: Sequence[Cell]) -> list[SessionRow]:
        sql = f"SELECT {SESSION_COLUMNS} FROM sessions WHERE {condition}"
        return await self._reader.run(lambda file: [to_session(r) for r in fetch(file, sql, cells)])

    async def _read_turns(
        self, columns: str, condition: str, cells: Sequence[Cell]
    ) -> list[TurnRow]:
        sql = f"SELECT {columns} FROM {_TURNS} WHERE {condition}"
        return await self._reader.run(lambda file: [to_turn(r) for r in fetch(file, sql, cells)])

    async def _read_integer(self, sql: str, cells: Sequence[Cell]) -> int | None:
        rows = await self._reader.run(lambda file: fetch(file, sql, cells))
        value = rows[0][0] if rows else None
        assert value is None or isinstance(value, int)
        return value


class _Connections:
    """The file's two connections, and the lock that keeps other servers off."""

    def __init__(
        self, place: FilePlace, lock_fd: int, write: sqlite3.Connection, read: sqlite3.Connection
    ) -> None:
        self.place = place
        self.lock_fd = lock_fd
        self.write = write
        self.read = read

    @classmethod
    def open(cls, path: Path) -> "_Connections":
        """Opens both. Raises StartupError, before anything is made where no store can be."""
        sqlite_schema.check_place(path)
        lock_fd = _lock(path)
        try:
            os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
            write = _connect(path)
            write.execute("PRAGMA journal_mode = WAL")
            write.execute("PRAGMA foreign_keys = ON")
            read = _connect(path)
            read.execute("PRAGMA query_only = ON")
        except (OSError, *DAMAGE) as error:
            os.close(lock_fd)
            raise StartupError(f"{path} can't be used as a session store: {error}") from error
        return cls(FilePlace(path), lock_fd, write, read)

    def close(self) -> None:
        """Closes both and lets go of the lock."""
        self.read.close()
        self.write.close()
        os.close(self.lock_fd)


def _connect(path: Path) -> sqlite3.Connection:
    """Opens a connection for one thread at a time that begins and ends transactions itself."""
    return sqlite3.connect(path, timeout=5.0, isolation_level=None, check_same_thread=False)


def _lock(path: Path) -> int:
    """Returns a file descriptor that holds the store's lock until it is closed."""
    try:
        # The file itself: two names of it must not make two locks.
        path = path.resolve()
        lock_path = path.with_name(path.name + ".lock")
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock_fd = os.open(lock_path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StartupError(f"{path} can't be used as a session store: {error}") from error
    try:
        fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(lock_fd)
        raise StartupError(
            f"another server uses the session store {path}; stop it, or name another (--store)"
        ) from error
    return lock_fd
