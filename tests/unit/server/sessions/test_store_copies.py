"""Copies of a store that is in use."""

import asyncio
import sqlite3
import stat
from pathlib import Path

import pytest

from antiphon_engine.api.errors import StartupError
from antiphon_server.sessions.sqlite_schema import MIGRATIONS
from antiphon_server.sessions.sqlite_store import SqliteStore
from antiphon_server.sessions.store_copies import copy_store
from support.session_rows import completed_row, key_of, new_session, session_row, turn_row

NUM_TURNS = 300


def open_store(path: Path) -> SqliteStore:
    return SqliteStore.open(path, synchronous="normal", owner="test")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "sessions.db"


def copied(path: Path, name: str = "copy.db") -> Path:
    copy = path.parent / name
    copy_store(path, copy, on_progress=lambda done, total: None)
    return copy


async def add_turns(store: SqliteStore, first: int, last: int) -> None:
    for position in range(first, last + 1):
        await store.accept_turn(key_of(), turn_row(position))
        await store.end_turn(completed_row(position), session_row(version=position + 1))


async def turn_ids_in(path: Path) -> list[str]:
    store = open_store(path)
    try:
        return [row.turn_id for row in await store.read_history(key_of())]
    finally:
        await store.close()


async def test_copy_has_all_that_was_written_and_can_be_served(path: Path) -> None:
    store = open_store(path)
    await store.create_session(new_session(session_row()))
    await add_turns(store, 1, 5)

    copy = await asyncio.to_thread(copied, path)

    await add_turns(store, 6, 7)
    await store.close()
    assert await turn_ids_in(copy) == ["t1", "t2", "t3", "t4", "t5"]
    assert await turn_ids_in(path) == [f"t{number}" for number in range(1, 8)]


async def test_copies_made_while_turns_are_written_hold_up_nobody_and_are_whole(
    path: Path,
) -> None:
    store = open_store(path)
    await store.create_session(new_session(session_row()))
    writing = asyncio.create_task(add_turns(store, 1, NUM_TURNS))
    copies = [await asyncio.to_thread(copied, path, f"copy{number}.db") for number in range(4)]
    await writing
    await store.close()

    all_ids = [f"t{number}" for number in range(1, NUM_TURNS + 1)]
    sizes = []
    for copy in copies:
        turn_ids = await turn_ids_in(copy)
        sizes.append(len(turn_ids))
        assert turn_ids == all_ids[: len(turn_ids)]
    assert sizes == sorted(sizes)


async def test_copy_of_a_store_that_nobody_uses(path: Path) -> None:
    store = open_store(path)
    await store.create_session(new_session(session_row()))
    await add_turns(store, 1, 1)
    await store.close()

    assert await turn_ids_in(copied(path)) == ["t1"]


async def test_copy_is_its_owners_alone_and_leaves_nothing_beside_it(path: Path) -> None:
    await open_store(path).close()

    copy = copied(path)

    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    assert not [each for each in path.parent.iterdir() if each.name.startswith(".copy")]


async def test_progress_is_told(path: Path) -> None:
    store = open_store(path)
    await store.create_session(new_session(session_row()))
    large = turn_row(1)
    large.turn.input[0].message.text = "x" * (8 << 20)
    await store.accept_turn(key_of(), large)
    for number in range(2000):
        await store.create_session(
            new_session(session_row(key_of(f"s{number}")), max_sessions=10_000)
        )
    await store.close()
    told: list[tuple[int, int]] = []

    size = copy_store(
        path, path.with_name("copy.db"), on_progress=lambda *figures: told.append(figures)
    )

    assert told
    assert all(0 <= done <= 2 * total for done, total in told)
    assert size > 8 << 20


async def test_nothing_is_ever_replaced(path: Path) -> None:
    await open_store(path).close()
    there = path.with_name("copy.db")
    there.write_text("dear diary")

    with pytest.raises(StartupError, match=r"copy\.db is there already"):
        copied(path)
    assert there.read_text() == "dear diary"


def make_newer(path: Path) -> None:
    asyncio.run(open_store(path).close())
    with sqlite3.connect(path) as file:
        file.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
    file.close()


MISTAKES = {
    "there is no session store": lambda path: None,
    "is an empty file": lambda path: path.touch(),
    "can't be used as a session store": lambda path: path.write_bytes(b"no database" * 999),
    "written by a later release": make_newer,
}


@pytest.mark.parametrize("why", MISTAKES)
def test_what_is_no_store_is_told_in_one_line(path: Path, why: str) -> None:
    MISTAKES[why](path)

    with pytest.raises(StartupError, match=why) as caught:
        copied(path)
    assert str(path) in str(caught.value)
    assert not path.with_name("copy.db").exists()


async def test_a_folder_that_is_not_there_is_told(path: Path) -> None:
    await open_store(path).close()

    with pytest.raises(StartupError, match=r"can't be copied to .*none"):
        copied(path, "none/copy.db")
