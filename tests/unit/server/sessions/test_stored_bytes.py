"""What tenants take up in the store is counted, and bounded where a quota says so."""

import sqlite3
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio
from antiphon.v1.session_pb2 import Session, Turn

from antiphon_engine.api.errors import AntiphonError, ErrorReason
from antiphon_server.access.quota_limits import QuotaLimits
from antiphon_server.sessions.records import Fork
from antiphon_server.sessions.sqlite_store import SqliteStore
from support.old_stores import write_old_store
from support.session_bench import BenchSpec, session_bench
from support.session_rows import completed_row, key_of, new_session, session_row, turn_row

RECOUNT = """
    SELECT tenant, sum(size) FROM (
      SELECT tenant, length(session) AS size FROM sessions
      UNION ALL
      SELECT DISTINCT tenant, size FROM (
        SELECT turns.tenant, content_key,
          length(turn) + coalesce(length(head_ids), 0) + length(added_ids) + length(output_ids)
            + content_key * 1000000000 AS size
        FROM turns JOIN contents USING (content_key)))
    GROUP BY tenant
"""
CONTENT = 1_000_000_000
"""Tells contents of equal size apart in the recount."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "sessions.db"


@pytest_asyncio.fixture
async def store(path: Path) -> AsyncIterator[SqliteStore]:
    opened = SqliteStore.open(path, synchronous="normal", owner="test")
    yield opened
    await opened.close()


def counted(path: Path) -> dict[str, int]:
    with sqlite3.connect(path) as file:
        told = dict(file.execute("SELECT tenant, size_bytes FROM stored"))
        recounted = {tenant: size % CONTENT for tenant, size in file.execute(RECOUNT)}
    file.close()
    assert {tenant: size for tenant, size in told.items() if size} == recounted
    return told


async def add_turns(store: SqliteStore, tenant: str, num_turns: int) -> None:
    key = key_of(tenant=tenant)
    await store.create_session(new_session(session_row(key)))
    for position in range(1, num_turns + 1):
        await store.accept_turn(key, turn_row(position, key=key))
        row = completed_row(position, key=key)
        await store.end_turn(row, session_row(key, version=position + 1))


async def test_all_that_is_added_changed_and_deleted_is_counted(
    store: SqliteStore, path: Path
) -> None:
    await add_turns(store, "a", 3)
    alone = counted(path)
    await add_turns(store, "b", 1)
    both = counted(path)
    large = session_row(key_of(tenant="b"), version=9)
    large.session.instructions = "x" * 1000
    await store.update_session(large, None)
    larger = counted(path)
    await store.delete_session(key_of(tenant="b"))
    left = counted(path)

    assert both["a"] == alone["a"] > 0
    assert larger["b"] >= both["b"] + 1000
    assert left["b"] == 0
    assert left["a"] == alone["a"]


async def test_what_forks_share_is_counted_once_until_the_last_of_them_goes(
    store: SqliteStore, path: Path
) -> None:
    await add_turns(store, "a", 3)
    parent, child = key_of(tenant="a"), key_of("child", "a")
    before = counted(path)["a"]
    new = replace(new_session(session_row(child)), fork=Fork(parent=parent, position=2))
    await store.create_session(new)
    row_bytes = session_row(child).session.ByteSize()

    assert counted(path)["a"] == before + row_bytes
    await store.delete_session(parent)
    assert counted(path)["a"] > row_bytes
    await store.delete_session(child)
    assert counted(path)["a"] == 0


async def test_failed_turns_and_expiry_are_counted(store: SqliteStore, path: Path) -> None:
    key = key_of(tenant="a")
    await store.create_session(new_session(session_row(key, expire_ns=5)))
    await store.accept_turn(key, turn_row(1, key=key))
    failed = turn_row(1, key=key, state=Turn.STATE_FAILED)
    failed.turn.failure.message = "so it is"
    await store.end_turn(failed, session_row(key, expire_ns=5))
    counted(path)

    assert await store.expire_session(key, 5)
    assert counted(path)["a"] == 0


@pytest.mark.parametrize("schema", [1, 2])
async def test_files_of_earlier_releases_are_counted_as_they_are_brought_forward(
    path: Path, schema: int
) -> None:
    turns = [completed_row(1), turn_row(2, state=Turn.STATE_FAILED)]
    write_old_store(path, schema, [(session_row(), turns)])
    opened = SqliteStore.open(path, synchronous="normal", owner="test")
    try:
        assert counted(path)[""] > 0
    finally:
        await opened.close()


async def test_a_full_tenant_keeps_no_more_turns_and_sessions_and_others_do(
    store: SqliteStore,
) -> None:
    await add_turns(store, "a", 2)
    key = key_of(tenant="a")
    with pytest.raises(AntiphonError) as turn:
        await store.accept_turn(key, turn_row(3, key=key), max_stored_bytes=10)
    new = new_session(session_row(key_of("more", "a")))
    with pytest.raises(AntiphonError) as session:
        await store.create_session(replace(new, max_stored_bytes=10))
    other = new_session(session_row(key_of("more", "b")))
    await store.create_session(replace(other, max_stored_bytes=10))

    for caught in (turn, session):
        assert caught.value.reason is ErrorReason.QUOTA_EXCEEDED
        assert caught.value.metadata["quota"] == "max_stored_bytes"
        assert caught.value.metadata["limit"] == "10"
        assert caught.value.retry_delay_s is None
    assert await store.read_turn(key, "t3") is None


async def test_a_session_of_a_full_tenant_refuses_turns_without_a_trace(spec: BenchSpec) -> None:
    spec.quotas = QuotaLimits(max_stored_bytes=200)
    async with session_bench(spec) as bench:
        await bench.create()
        await bench.run("say a lot " * 5, "t1")
        with pytest.raises(AntiphonError) as caught:
            await bench.run("more", "t2")
        session: Session = await bench.session()

    assert caught.value.metadata["quota"] == "max_stored_bytes"
    assert session.num_turns == 1
