import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from antiphon.v1.session_pb2 import Session

from antiphon_engine.api.errors import AntiphonError, ErrorReason, StartupError
from antiphon_server.sessions.file_place import FilePlace
from antiphon_server.sessions.records import FAILED, Receipt, SessionQuery, TurnQuery
from antiphon_server.sessions.sqlite_schema import MIGRATIONS
from antiphon_server.sessions.sqlite_store import SqliteStore
from antiphon_server.sessions.sqlite_threads import Writer
from support.session_rows import (
    completed_row,
    key_of,
    new_session,
    session_row,
    turn_row,
)


def open_store(path: Path, owner: str = "test") -> SqliteStore:
    return SqliteStore.open(path, synchronous="normal", owner=owner)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "sessions.db"


@pytest_asyncio.fixture
async def store(path: Path) -> AsyncIterator[SqliteStore]:
    opened = open_store(path)
    yield opened
    await opened.close()


def receipt(request_id: str, content: bytes, create_ns: int = 1) -> Receipt:
    return Receipt(
        tenant="",
        request_id=request_id,
        fingerprint=content,
        create_ns=create_ns,
        answer=Session(name="told first"),
    )


def pages(show_all: bool = False, newest_first: bool = False, after: int | None = None):
    return TurnQuery(
        key=key_of(), after_position=after, limit=2, newest_first=newest_first, show_all=show_all
    )


async def test_what_was_written_is_there_after_a_reopen(path: Path):
    store = open_store(path)
    await store.create_session(new_session(session_row(labels={"k": "v"})))
    await store.accept_turn(key_of(), turn_row())
    ended = completed_row()
    await store.end_turn(ended, session_row(version=2, labels={"k": "v"}))
    await store.close()

    store = open_store(path)
    session, history = await store.read_session(key_of()), await store.read_history(key_of())
    await store.close()

    assert session == session_row(version=2, labels={"k": "v"})
    assert history == [ended]


async def test_each_opening_has_a_larger_epoch(path: Path):
    epochs = []
    for _ in range(3):
        store = open_store(path)
        epochs.append(store.epoch)
        await store.close()

    assert epochs == sorted(set(epochs))


async def test_a_write_of_an_older_epoch_is_refused(path: Path, store: SqliteStore):
    await store.create_session(new_session(session_row()))
    with sqlite3.connect(path) as later:
        later.execute("UPDATE sessions SET epoch = epoch + 1, owner = 'successor'")
    later.close()

    with pytest.raises(AntiphonError) as refused:
        await store.accept_turn(key_of(), turn_row())

    assert refused.value.reason is ErrorReason.STORE_UNAVAILABLE
    assert await store.read_turn(key_of(), "t1") is None


async def test_a_second_server_on_the_file_is_refused(path: Path, store: SqliteStore):
    with pytest.raises(StartupError, match="another server uses"):
        open_store(path)


def test_a_file_of_a_later_release_is_refused(path: Path):
    path.parent.mkdir()
    with sqlite3.connect(path) as file:
        file.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
    file.close()

    with pytest.raises(StartupError, match="later release"):
        open_store(path)


@pytest.mark.parametrize("content", [b"not a database, but long enough to be one" * 20])
def test_a_file_that_is_no_store_is_refused(path: Path, content: bytes):
    path.parent.mkdir()
    path.write_bytes(content)

    with pytest.raises(StartupError, match="can't be used"):
        open_store(path)


def test_a_database_of_another_program_is_refused(path: Path):
    path.parent.mkdir()
    with sqlite3.connect(path) as file:
        file.execute("CREATE TABLE contacts (name TEXT)")
    file.close()

    with pytest.raises(StartupError, match="another program"):
        open_store(path)


def test_a_folder_that_cannot_be_made_is_one_clear_line(tmp_path: Path):
    (tmp_path / "file").write_text("")

    with pytest.raises(StartupError, match="can't be used"):
        open_store(tmp_path / "file" / "sessions.db")


def test_the_files_are_for_their_owner_alone(path: Path):
    asyncio.run(open_store(path).close())

    assert path.stat().st_mode & 0o077 == 0
    assert path.parent.stat().st_mode & 0o077 == 0


async def test_a_taken_id_is_refused_and_changes_nothing(store: SqliteStore):
    await store.create_session(new_session(session_row(labels={"k": "first"})))

    with pytest.raises(AntiphonError) as refused:
        await store.create_session(new_session(session_row(labels={"k": "second"})))

    assert refused.value.reason is ErrorReason.ID_TAKEN
    kept = await store.read_session(key_of())
    assert kept is not None
    assert kept.session.labels["k"] == "first"


async def test_tenants_do_not_see_each_other(store: SqliteStore):
    for tenant in ("x", "y"):
        await store.create_session(new_session(session_row(key_of("a", tenant))))

    listed = await store.list_sessions(SessionQuery(tenant="x", labels={}, before=None, limit=9))

    assert [row.key.tenant for row in listed] == ["x"]
    assert await store.read_session(key_of("a", "z")) is None


async def test_the_quota_counts_a_tenants_living_sessions(store: SqliteStore):
    await store.create_session(new_session(session_row(key_of("old"), expire_ns=5)))
    await store.create_session(new_session(session_row(key_of("b"), create_ns=9), max_sessions=1))

    with pytest.raises(AntiphonError) as refused:
        await store.create_session(
            new_session(session_row(key_of("c"), create_ns=10), max_sessions=1)
        )

    assert refused.value.reason is ErrorReason.QUOTA_EXCEEDED
    assert refused.value.metadata["limit"] == "1"


async def test_a_retry_gets_the_first_answer(store: SqliteStore):
    new = new_session(session_row(), receipt=receipt("r", b"same"))
    assert await store.create_session(new) is None

    answer = await store.create_session(new)

    assert answer == Session(name="told first")
    assert await store.count_sessions() == 1


async def test_a_request_id_with_other_content_is_taken(store: SqliteStore):
    await store.create_session(new_session(session_row(), receipt=receipt("r", b"one")))

    with pytest.raises(AntiphonError) as refused:
        await store.create_session(
            new_session(session_row(key_of("b")), receipt=receipt("r", b"two"))
        )

    assert refused.value.reason is ErrorReason.ID_TAKEN
    assert await store.read_session(key_of("b")) is None


async def test_a_request_id_is_forgotten_after_a_day(store: SqliteStore):
    await store.create_session(new_session(session_row(), receipt=receipt("r", b"one")))
    next_day = receipt("r", b"two", create_ns=2 + 24 * 3600 * 10**9)

    assert await store.find_answer(next_day) is None
    assert (
        await store.create_session(new_session(session_row(key_of("b")), receipt=next_day)) is None
    )


async def test_an_expired_session_is_told_from_one_that_never_was(store: SqliteStore):
    await store.create_session(new_session(session_row(expire_ns=5)))
    await store.accept_turn(key_of(), turn_row())

    assert [row.key for row in await store.list_expired(5, 10)] == [key_of()]
    assert await store.expire_session(key_of(), 5)
    assert not await store.expire_session(key_of(), 5)

    assert await store.read_session(key_of()) is None
    assert await store.read_turn(key_of(), "t1") is None
    assert await store.read_expired(key_of()) == 5
    assert await store.read_expired(key_of("b")) is None
    await store.forget_receipts(0, expired_before_ns=6)
    assert await store.read_expired(key_of()) is None


async def test_a_deleted_session_leaves_nothing(path: Path, store: SqliteStore):
    await store.create_session(new_session(session_row(labels={"k": "v"})))
    await store.accept_turn(key_of(), turn_row())

    await store.delete_session(key_of())

    with sqlite3.connect(path) as file:
        left = [
            file.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
            for table in ("sessions", "turns", "contents", "labels", "expired")
        ]
    file.close()
    assert left == [0, 0, 0, 0, 0]


async def test_sessions_are_listed_latest_first_by_label_and_page(store: SqliteStore):
    for number in range(5):
        labels = {"parity": "even" if number % 2 == 0 else "odd"}
        row = session_row(key_of(f"s{number}"), create_ns=number // 2, labels=labels)
        await store.create_session(new_session(row))

    def query(limit: int, **more: object) -> SessionQuery:
        return SessionQuery(**{"tenant": "", "labels": {}, "before": None, "limit": limit} | more)

    whole = [row.key.session_id for row in await store.list_sessions(query(9))]
    behind = await store.list_sessions(query(2, before=(1, "s3")))
    even = await store.list_sessions(query(9, labels={"parity": "even"}))

    assert whole == ["s4", "s3", "s2", "s1", "s0"]
    assert [row.key.session_id for row in behind] == ["s2", "s1"]
    assert [row.key.session_id for row in even] == ["s4", "s2", "s0"]


async def test_turns_are_listed_by_order_and_page(store: SqliteStore):
    await store.create_session(new_session(session_row()))
    for position in range(1, 5):
        await store.accept_turn(key_of(), turn_row(position))
    await store.end_turn(turn_row(2, state=FAILED), session_row())

    async def ids(query: TurnQuery) -> list[str]:
        return [row.turn_id for row in await store.list_turns(query)]

    assert await ids(pages()) == ["t1", "t3"]
    assert await ids(pages(after=3)) == ["t4"]
    assert await ids(pages(newest_first=True, show_all=True)) == ["t4", "t3"]
    assert await ids(pages(newest_first=True, show_all=True, after=3)) == ["t2", "t1"]
    assert await store.read_last_position(key_of()) == 4
    assert [row.turn_id for _, row in await store.list_unfinished()] == ["t1", "t3", "t4"]


async def test_one_bad_write_fails_no_other_of_its_batch(store: SqliteStore):
    await store.create_session(new_session(session_row()))

    results = await asyncio.gather(
        store.accept_turn(key_of(), turn_row(1)),
        store.accept_turn(key_of(), turn_row(1)),
        store.accept_turn(key_of(), turn_row(2)),
        store.accept_turn(key_of("nowhere"), turn_row(3)),
        return_exceptions=True,
    )

    assert [type(result) for result in results] == [
        type(None),
        AntiphonError,
        type(None),
        AntiphonError,
    ]
    assert await store.read_last_position(key_of()) == 2


async def test_a_write_that_is_refused_in_its_middle_leaves_nothing(tmp_path: Path):
    connection = sqlite3.connect(
        tmp_path / "file.db", isolation_level=None, check_same_thread=False
    )
    connection.execute("CREATE TABLE numbers (number INTEGER)")
    writer = Writer(connection, FilePlace(tmp_path / "file.db"))

    def refuse(file: sqlite3.Connection) -> None:
        file.execute("INSERT INTO numbers VALUES (1)")
        raise AntiphonError(ErrorReason.ID_TAKEN, "refused")

    def keep(file: sqlite3.Connection) -> None:
        file.execute("INSERT INTO numbers VALUES (2)")

    results = await asyncio.gather(
        writer.run(refuse), writer.run(keep), writer.run(refuse), return_exceptions=True
    )
    kept = await writer.run(lambda file: file.execute("SELECT * FROM numbers").fetchall())
    await writer.close()

    assert [type(result) for result in results] == [AntiphonError, type(None), AntiphonError]
    assert kept == [(2,)]


async def test_a_full_disk_is_told_and_the_store_goes_on_when_there_is_room(
    path: Path, store: SqliteStore
):
    await store.create_session(new_session(session_row()))
    pages_now = await store._writer.run(
        lambda file: int(file.execute("PRAGMA page_count").fetchone()[0])
    )
    await asyncio.to_thread(_limit_pages, store, pages_now)
    large = turn_row(1)
    large.turn.input[0].message.text = "x" * 100_000

    with pytest.raises(AntiphonError) as refused:
        await store.accept_turn(key_of(), large)
    await asyncio.to_thread(_limit_pages, store, 1 << 20)
    await store.accept_turn(key_of(), large)

    assert refused.value.reason is ErrorReason.STORE_UNAVAILABLE
    assert refused.value.retry_delay_s


def _limit_pages(store: SqliteStore, num_pages: int) -> None:
    store._writer._connection.execute(f"PRAGMA max_page_count = {num_pages}")


WRITER = """
import asyncio, sys
from pathlib import Path
from antiphon_server.sessions.sqlite_store import SqliteStore
from antiphon_server.sessions.sqlite_threads import Writer
from support.session_rows import completed_row, key_of, new_session, session_row, turn_row

async def main():
    store = SqliteStore.open(Path(sys.argv[1]), synchronous="full", owner="killed")
    await store.create_session(new_session(session_row()))
    for position in range(1, 100_000):
        await store.accept_turn(key_of(), turn_row(position))
        await store.end_turn(completed_row(position), session_row(version=position + 1))
        print(position, flush=True)

asyncio.run(main())
"""


async def test_nothing_that_was_acknowledged_is_lost_when_the_process_is_killed(path: Path):
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", WRITER, str(path)), stdout=subprocess.PIPE, env=environment
    )
    assert process.stdout is not None
    acknowledged = [int(await process.stdout.readline()) for _ in range(20)]
    process.send_signal(signal.SIGKILL)
    acknowledged += [int(line) for line in (await process.communicate())[0].split()]

    store = open_store(path)
    history, session = await store.read_history(key_of()), await store.read_session(key_of())
    await store.close()

    kept = [row.position for row in history]
    assert kept[: len(acknowledged)] == acknowledged
    assert history == [completed_row(position) for position in kept]
    assert session is not None
    assert session.version == kept[-1] + 1


def test_another_name_of_the_file_makes_no_second_lock(path: Path, store: SqliteStore):
    other = path.with_name("other.db")
    other.symlink_to(path)

    with pytest.raises(StartupError, match="another server uses"):
        SqliteStore.open(other, synchronous="normal", owner="second")
