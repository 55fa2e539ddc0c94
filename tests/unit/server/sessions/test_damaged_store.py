"""A store whose file reads well and whose rows are not what was written."""

import asyncio
import sqlite3
import uuid
from pathlib import Path

import pytest
from antiphon.v1.session_pb2 import CreateSessionRequest, Session
from google.protobuf.duration_pb2 import Duration

from antiphon_engine.api.errors import ErrorReason, StartupError
from support.failing import refused
from support.server import running_server
from support.session_bench import KEY, SessionBench, eventually

ROT = b"\xff\xff\xff\xff"


async def test_a_damaged_turn_is_told_in_one_line_at_the_start(tmp_path: Path):
    async with running_server(tmp_path) as server:
        await server.sessions.CreateSession(CreateSessionRequest(session_id="a"))
    with sqlite3.connect(tmp_path / "sessions.db") as file:
        file.execute("INSERT INTO contents VALUES (1, ?, NULL, x'', x'', x'')", (ROT,))
        file.execute(
            "INSERT INTO turns VALUES ('', 'a', 1, 't', 1, 0, 1, 0, x'', NULL, NULL, 1, '', 1)"
        )
    file.close()

    with pytest.raises(StartupError, match=r"sessions\.db") as caught:
        async with running_server(tmp_path):
            pass
    assert "\n" not in str(caught.value)


async def test_a_damaged_turn_fails_what_needs_it_and_nothing_else(bench: SessionBench):
    await bench.create()
    await bench.run("hi", "t1")
    await bench.store._writer.run(lambda file: file.execute("UPDATE contents SET turn = ?", (ROT,)))

    error = await refused(bench.turn("t1"))

    assert error.reason is ErrorReason.STORE_UNAVAILABLE
    assert (await bench.run("go on", "t2"))[-1].HasField("completed")


async def test_tokens_that_were_cut_are_damage_of_the_store(bench: SessionBench):
    await bench.create()
    await bench.run("hi", "t1")
    await bench.store._writer.run(
        lambda file: file.execute("UPDATE contents SET output_ids = x'ff'")
    )

    error = await refused(bench.turn("t1"))

    assert error.reason is ErrorReason.STORE_UNAVAILABLE


async def test_a_turn_whose_row_has_gone_ends_and_the_store_goes_on(bench: SessionBench):
    await bench.create()
    bench.engine.hold()
    turn = asyncio.create_task(bench.run("hi", "t1"))
    await eventually(lambda: bool(bench.engine.requests))
    await bench.store._writer.run(lambda file: file.execute("DELETE FROM turns"))
    bench.engine.release()

    events = await turn

    assert events[-1].failed.reason == "STORE_UNAVAILABLE"
    assert (await bench.run("go on", "t2"))[-1].HasField("completed")


async def test_a_damaged_session_that_has_expired_keeps_no_other(bench: SessionBench):
    await bench.create(idle_ttl=Duration(seconds=1))
    short = Session(idle_ttl=Duration(seconds=1))
    await bench.registry.create("", CreateSessionRequest(session_id="b", session=short))
    await bench.store._writer.run(
        lambda file: file.execute("UPDATE sessions SET session = ? WHERE session_id = 'a'", (ROT,))
    )
    bench.clock.pass_s(2)

    await bench.registry._sweeper.sweep()

    assert await bench.store.count_sessions() == 1


async def test_a_damaged_receipt_does_not_end_the_store(bench: SessionBench):
    first = CreateSessionRequest(session_id="a", request_id=str(uuid.UUID(int=1)))
    await bench.registry.create("", first)
    await bench.store._writer.run(
        lambda file: file.execute("UPDATE receipts SET answer = ?", (ROT,))
    )

    error = await refused(bench.registry.create("", first))

    assert error.reason is ErrorReason.STORE_UNAVAILABLE
    async with asyncio.timeout(60):
        await bench.registry.create("", CreateSessionRequest(session_id="b"))
    await eventually(lambda: bench.registry.num_sessions == 2)
    assert (await bench.session()).name == KEY.name
