"""Turns that end while the store can't be written: told once, and as they are kept."""

import asyncio
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from antiphon.v1.session_pb2 import Turn

from antiphon_server.sessions.turn_request import Frame, read_start_turn
from support.fake_engine import FakeEngine
from support.session_bench import (
    KEY,
    BenchSpec,
    SessionBench,
    events_of,
    eventually,
    session_bench,
    start_turn,
)


@pytest.fixture
def spec(spec: BenchSpec) -> BenchSpec:
    spec.engine = lambda: FakeEngine(step_interval_s=0.002)
    return spec


@contextmanager
def outage(bench: SessionBench) -> Iterator[None]:
    """Holds the store's file as another process would."""
    bench.store._writer._connection.execute("PRAGMA busy_timeout = 10")
    path = bench.store._writer._place._path
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        other.close()


async def begin(bench: SessionBench, turn_id: str, **values: object):
    """Starts a turn; returns its log once the turn is accepted."""
    async with bench.registry.use(KEY) as session:
        request = read_start_turn(start_turn("hi", turn_id, **values), Frame(path="turn"))
        return (await session.start_turn(request)).log


async def until_it_waits(bench: SessionBench) -> None:
    """Until a turn's end has been refused by the store."""
    await eventually(lambda: not bench.store.writable and bench.engine.num_running == 0)


async def test_a_turn_that_ends_in_an_outage_completes_when_that_is_over(spec: BenchSpec):
    async with session_bench(spec) as bench:
        await bench.create()
        log = await begin(bench, "t1")
        with outage(bench):
            await until_it_waits(bench)
            assert not log.ended
        events = await events_of(log)
        again = await bench.run("more", "t2")
        session = await bench.session()

    assert events[-1].HasField("completed")
    assert again[-1].HasField("completed")
    assert session.num_turns == 2


async def test_a_turn_that_fails_in_an_outage_is_told_so_once_that_is_kept(spec: BenchSpec):
    async with session_bench(spec) as bench:
        await bench.create()
        log = await begin(bench, "t1")
        with outage(bench):
            async with bench.registry.use(KEY) as session:
                await session.cancel_turn("t1", discards=True)
            await until_it_waits(bench)
            assert not log.ended
        events = await events_of(log)
    async with session_bench(spec) as bench:
        turn = await bench.turn("t1")
        assert not bench.engine.requests

    assert events[-1].HasField("failed")
    assert turn.state == Turn.STATE_FAILED


async def test_a_server_that_stops_in_an_outage_leaves_the_turn_to_the_next(spec: BenchSpec):
    async with session_bench(spec) as bench:
        await bench.create()
        log = await begin(bench, "t1")
        with outage(bench):
            await until_it_waits(bench)
            async with asyncio.timeout(60):
                await bench.registry.close()
    async with session_bench(spec) as bench:
        await eventually(lambda: not bench.registry.is_active(KEY))
        turn = await bench.turn("t1")

    assert not log.ended
    assert turn.state == Turn.STATE_COMPLETED
