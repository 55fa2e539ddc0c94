"""Files that an earlier release has written."""

import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest
from antiphon.v1.session_pb2 import Turn

from antiphon_server.sessions.sqlite_store import SqliteStore
from support.old_stores import write_old_store
from support.session_bench import KEY, BenchSpec, session_bench
from support.session_rows import completed_row, key_of, session_row, turn_row


@pytest.mark.parametrize("schema", [1, 2])
async def test_a_file_of_an_earlier_release_is_brought_forward(spec: BenchSpec, schema: int):
    async with session_bench(spec) as bench:
        await bench.create()
        await bench.run("hi", "t1")
        row, turns = await bench.store.read_session(KEY), await bench.store.read_history(KEY)
    assert row is not None
    old = spec.path.with_name("old.db")
    write_old_store(old, schema, [(row, turns)])

    async with session_bench(replace(spec, path=old)) as bench:
        session = await bench.session()
        again = await bench.run("hi", "t1")
        events = await bench.run("more", "t2")

    assert session.head_turn == KEY.turn_name("t1")
    assert (again[-1].completed.etag == session.etag) == (schema > 1)
    assert events[-1].HasField("completed")


async def test_nothing_in_a_file_is_lost_as_it_is_brought_forward(tmp_path: Path):
    path = tmp_path / "old.db"
    turns = [
        replace(completed_row(1), version=2),
        turn_row(2, state=Turn.STATE_FAILED),
        replace(completed_row(3), version=4),
        turn_row(4, state=Turn.STATE_RUNNING),
    ]
    other = session_row(key_of("b"))
    write_old_store(path, 2, [(session_row(version=4), turns), (other, ())])

    store = SqliteStore.open(path, synchronous="normal", owner="test")
    kept = [await store.read_turn(key_of(), row.turn_id) for row in turns]
    history = await store.read_history(key_of())
    unfinished = await store.list_unfinished()
    sessions = [await store.read_session(key_of()), await store.read_session(key_of("b"))]
    await store.delete_session(key_of())
    await store.close()

    assert kept == turns
    assert history == [turns[0], turns[2]]
    assert [row.turn_id for _, row in unfinished] == ["t4"]
    assert unfinished[0][1].order is None
    assert sessions == [session_row(version=4), other]
    with sqlite3.connect(path) as file:
        assert file.execute("SELECT count(*) FROM contents").fetchone() == (0,)
    file.close()
