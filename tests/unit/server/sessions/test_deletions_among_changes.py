"""Changes that meet a session's end: they find it gone, and don't blame the store."""

import asyncio
import threading
from collections.abc import Callable, Coroutine

import pytest
from antiphon.v1.session_pb2 import HistoryPoint
from google.protobuf.duration_pb2 import Duration
from google.protobuf.empty_pb2 import Empty

from antiphon_engine.api.errors import AntiphonError, ErrorReason
from support.session_bench import KEY, SessionBench, eventually


@pytest.mark.parametrize(
    "change",
    [
        lambda bench: bench.fork(),
        lambda bench: bench.rewind(to=HistoryPoint(start=Empty())),
        lambda bench: bench.instruct("other"),
    ],
    ids=["fork", "rewind", "update"],
)
async def test_a_change_behind_a_deletion_finds_no_session(
    bench: SessionBench, change: Callable[[SessionBench], Coroutine[None, None, object]]
):
    await bench.create()
    await bench.run("one", "t1")
    await bench.registry._sweeper.sweep()
    writer, reached, opened = bench.store._writer, threading.Event(), threading.Event()

    def hold_up(_file: object) -> None:
        reached.set()
        assert opened.wait(60)

    held_up = asyncio.create_task(writer.run(hold_up))
    assert await asyncio.to_thread(reached.wait, 10)
    deleted = asyncio.create_task(bench.registry.delete(KEY, ""))
    await eventually(lambda: writer._num_waiting == 2)
    changed = asyncio.create_task(change(bench))
    # As far as the change comes while the deletion is written.
    await asyncio.wait({changed}, timeout=0.1)
    opened.set()
    await held_up

    await deleted
    with pytest.raises(AntiphonError) as refused:
        await changed
    assert refused.value.reason is ErrorReason.SESSION_NOT_FOUND


@pytest.mark.parametrize(
    "change",
    [
        lambda bench: bench.fork(),
        lambda bench: bench.rewind(to=HistoryPoint(turn=f"{KEY.name}/turns/t1")),
    ],
    ids=["fork", "rewind"],
)
async def test_a_change_that_meets_the_end_of_a_sessions_time_tells_of_that(
    bench: SessionBench, change: Callable[[SessionBench], Coroutine[None, None, object]]
):
    await bench.create(idle_ttl=Duration(seconds=1))
    await bench.run("one", "t1")
    row = await bench.store.read_session(KEY)
    assert row is not None
    async with bench.registry.use(KEY) as session, session.ledger.lock:
        changed = asyncio.create_task(change(bench))
        await eventually(lambda: session.num_uses == 2)
        bench.clock.pass_s(2)
        opened = threading.Event()

        def hold_up(_file: object) -> None:
            assert opened.wait(60)

        held_up = asyncio.create_task(bench.store._reader.run(hold_up))
        await asyncio.sleep(0)
    await asyncio.wait({changed}, timeout=0.05)
    await bench.registry.expire(row)
    opened.set()
    await held_up

    with pytest.raises(AntiphonError) as refused:
        await changed
    assert refused.value.reason is ErrorReason.SESSION_EXPIRED
