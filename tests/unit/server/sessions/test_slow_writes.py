"""Writes that take longer than any caller should wait: told as what became of them."""

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from antiphon_engine.api.errors import AntiphonError, ErrorReason
from antiphon_server.sessions.file_place import FilePlace
from antiphon_server.sessions.sqlite_threads import Writer
from support.session_bench import eventually

MAX_WAIT_S = 0.05


@pytest_asyncio.fixture
async def writer(tmp_path: Path) -> AsyncIterator[Writer]:
    path = tmp_path / "file.db"
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    connection.execute("CREATE TABLE numbers (number INTEGER)")
    opened = Writer(connection, FilePlace(path), max_wait_s=MAX_WAIT_S)
    yield opened
    await opened.close()


def write(number: int, file: sqlite3.Connection) -> int:
    file.execute("INSERT INTO numbers VALUES (?)", (number,))
    return number


def numbers(file: sqlite3.Connection) -> list[tuple[int]]:
    return file.execute("SELECT number FROM numbers").fetchall()


async def test_a_write_that_has_begun_is_told_as_it_ends_and_one_that_waits_is_not_made(
    writer: Writer,
):
    begun, may_end = threading.Event(), threading.Event()

    def slow(file: sqlite3.Connection) -> int:
        begun.set()
        assert may_end.wait(60)
        return write(1, file)

    first = asyncio.create_task(writer.run(slow))
    assert await asyncio.to_thread(begun.wait, 60)
    second = asyncio.create_task(writer.run(lambda file: write(2, file)))
    with pytest.raises(AntiphonError) as refused:
        await second
    await eventually(lambda: not writer.health.writable)
    assert not first.done()
    may_end.set()

    assert refused.value.reason is ErrorReason.STORE_UNAVAILABLE
    assert await first == 1
    assert await writer.run(numbers) == [(1,)]
    assert writer.health.writable


async def test_a_write_that_nobody_waits_for_any_more_is_not_made(writer: Writer):
    begun, may_end = threading.Event(), threading.Event()

    def slow(_file: sqlite3.Connection) -> None:
        begun.set()
        assert may_end.wait(60)

    first = asyncio.create_task(writer.run(slow))
    assert await asyncio.to_thread(begun.wait, 60)
    second = asyncio.create_task(writer.run(lambda file: write(2, file)))
    await eventually(lambda: writer._num_waiting == 2)
    second.cancel()
    await asyncio.wait({second})
    may_end.set()
    await first

    assert await writer.run(numbers) == []
