"""Where a store may be: what stands at its path already is left alone unless it is one."""

import asyncio
import contextlib
import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from antiphon_engine.api.errors import StartupError
from antiphon_server.sessions.sqlite_store import SqliteStore


def open_store(path: Path) -> SqliteStore:
    return SqliteStore.open(path, synchronous="normal", owner="test")


def make_database(path: Path, *statements: str) -> None:
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as file:
        for statement in statements:
            file.execute(statement)


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (Path.mkdir, "is a folder"),
        (os.mkfifo, "is no regular file"),
        (lambda path: path.write_text("# Read me\n"), "a file of another kind"),
        (lambda path: path.write_bytes(b"SQLite"), "a file of another kind"),
        (lambda path: path.write_bytes(b"SQLite format 3\0" * 99), "can't be used"),
        (lambda path: make_database(path, "CREATE TABLE t (x)"), "another program"),
        (
            lambda path: make_database(path, "PRAGMA journal_mode = WAL", "CREATE TABLE t (x)"),
            "another program",
        ),
        (
            lambda path: make_database(path, "PRAGMA application_id = 7", "VACUUM"),
            "another program",
        ),
    ],
    ids=["folder", "pipe", "text", "few bytes", "damaged", "database", "wal", "marked"],
)
def test_what_is_no_store_is_refused_with_nothing_written(
    tmp_path: Path, make: Callable[[Path], object], told: str
):
    path = tmp_path / "mistyped"
    make(path)
    before = {file: file.stat() for file in tmp_path.iterdir()}

    with pytest.raises(StartupError, match=told):
        open_store(path)

    after = {file: file.stat() for file in tmp_path.iterdir()}
    assert list(after) == [path]
    assert after[path].st_mtime_ns == before[path].st_mtime_ns
    assert after[path].st_size == before[path].st_size


def test_an_empty_file_becomes_a_store(tmp_path: Path):
    path = tmp_path / "empty"
    path.touch()

    asyncio.run(open_store(path).close())

    assert path.stat().st_size > 0


def test_a_store_whose_tables_are_still_in_its_log_is_opened(tmp_path: Path):
    """As a server leaves it that was killed before it first wrote the log into the file."""
    young, killed = tmp_path / "young.db", tmp_path / "killed.db"
    store = open_store(young)
    for suffix in ("", "-wal"):
        shutil.copy(f"{young}{suffix}", f"{killed}{suffix}")
    asyncio.run(store.close())
    assert b"Antp" not in killed.read_bytes()[:100]

    again = open_store(killed)

    assert again.epoch == 2
    asyncio.run(again.close())
