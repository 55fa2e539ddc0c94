"""What is remembered for retries is bounded by tenant, also in a file from before that was so."""

import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from antiphon.v1.session_pb2 import Session

from antiphon_server.sessions.records import Receipt
from antiphon_server.sessions.sqlite_receipts import MAX_REMEMBERED_BYTES
from antiphon_server.sessions.sqlite_schema import APPLICATION_ID, MIGRATIONS
from antiphon_server.sessions.sqlite_store import SqliteStore
from support.session_rows import key_of, new_session, session_row

ANSWER_BYTES = 1 << 20


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "sessions.db"


@pytest_asyncio.fixture
async def store(path: Path) -> AsyncIterator[SqliteStore]:
    opened = SqliteStore.open(path, synchronous="normal", owner="test")
    yield opened
    await opened.close()


def receipt(number: int, *, tenant: str = "", size_bytes: int = ANSWER_BYTES) -> Receipt:
    return Receipt(
        tenant=tenant,
        request_id=f"r{number}",
        fingerprint=b"same",
        create_ns=number,
        answer=Session(instructions="x" * size_bytes),
    )


def remembered(path: Path) -> dict[str, int]:
    """What the file counts by tenant, recounted."""
    with sqlite3.connect(path) as file:
        counted = dict(file.execute("SELECT tenant, size_bytes FROM remembered"))
        recounted = dict(
            file.execute("SELECT tenant, sum(length(answer) + 256) FROM receipts GROUP BY tenant")
        )
    file.close()
    assert {tenant: size for tenant, size in counted.items() if size} == recounted
    return counted


async def test_the_oldest_answers_of_a_tenant_go_beyond_its_bound(path: Path, store: SqliteStore):
    await store.create_session(new_session(session_row()))
    other = session_row(key_of("b", tenant="other"))
    await store.create_session(new_session(other, receipt=receipt(0, tenant="other")))
    num_written = MAX_REMEMBERED_BYTES // ANSWER_BYTES + 4

    for number in range(1, num_written + 1):
        await store.update_session(session_row(), receipt(number))

    assert MAX_REMEMBERED_BYTES - 2 * ANSWER_BYTES < remembered(path)[""] <= MAX_REMEMBERED_BYTES
    assert await store.find_answer(receipt(1)) is None
    assert await store.find_answer(receipt(num_written)) is not None
    assert await store.find_answer(receipt(0, tenant="other")) is not None


async def test_answers_that_time_takes_are_not_counted_any_more(path: Path, store: SqliteStore):
    await store.create_session(new_session(session_row(), receipt=receipt(1, size_bytes=10)))
    await store.update_session(session_row(), receipt(2, size_bytes=10))

    await store.forget_receipts(2, expired_before_ns=0)

    assert remembered(path)[""] == receipt(2, size_bytes=10).answer.ByteSize() + 256


async def test_answers_in_a_file_from_before_are_counted(path: Path):
    with sqlite3.connect(path) as file:
        for script in MIGRATIONS[:5]:
            file.executescript(script)
        file.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        file.execute("PRAGMA user_version = 5")
        file.execute("INSERT INTO receipts VALUES ('t', 'r', x'', 1, x'000102')")
    file.close()

    store = SqliteStore.open(path, synchronous="normal", owner="test")
    await store.close()

    assert remembered(path) == {"t": 259}
