"""Files that an earlier release has written."""

import sqlite3
from dataclasses import replace

from antiphon_server.sessions.sqlite_schema import APPLICATION_ID, MIGRATIONS
from support.session_bench import KEY, BenchSpec, session_bench


async def test_a_file_of_the_first_release_is_brought_forward(spec: BenchSpec):
    async with session_bench(spec) as bench:
        await bench.create()
        await bench.run("hi", "t1")
    columns = (
        "tenant, session_id, position, turn_id, state, generates, fingerprint, turn, head_ids,"
        " head_digest, added_ids, output_ids, owner, epoch"
    )
    old = spec.path.with_name("old.db")
    with sqlite3.connect(old) as file:
        file.executescript(MIGRATIONS[0])
        file.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        file.execute("PRAGMA user_version = 1")
        file.execute("ATTACH ? AS new", (str(spec.path),))
        file.execute("INSERT INTO sessions SELECT * FROM new.sessions")
        file.execute(f"INSERT INTO turns ({columns}) SELECT {columns} FROM new.turns")
    file.close()

    async with session_bench(replace(spec, path=old)) as bench:
        session = await bench.session()
        again = await bench.run("hi", "t1")
        events = await bench.run("more", "t2")

    assert session.head_turn == KEY.turn_name("t1")
    assert again[-1].completed.etag != session.etag
    assert events[-1].HasField("completed")
