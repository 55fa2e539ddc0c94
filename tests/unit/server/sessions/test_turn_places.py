"""However a turn ends, it gives its place in its tenant's quotas back."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from google.protobuf.duration_pb2 import Duration

from antiphon_engine.api.errors import AntiphonError, ErrorReason
from antiphon_server.access.quota_limits import QuotaLimits
from antiphon_server.sessions.turn_request import Frame, read_start_turn
from support.fake_engine import FakeEngine
from support.session_bench import (
    KEY,
    BenchSpec,
    SessionBench,
    eventually,
    session_bench,
    start_turn,
)


async def begin(bench: SessionBench, turn_id: str, **values: object) -> None:
    async with bench.registry.use(KEY) as session:
        request = read_start_turn(start_turn("hi", turn_id, **values), Frame(path="turn"))
        await session.start_turn(request)


async def complete(bench: SessionBench) -> None:
    await bench.run("hi", "t")


async def cancel(bench: SessionBench) -> None:
    await begin(bench, "t")
    async with bench.registry.use(KEY) as session:
        await session.cancel_turn("t", discards=False)


async def discard(bench: SessionBench) -> None:
    await begin(bench, "t")
    async with bench.registry.use(KEY) as session:
        await session.cancel_turn("t", discards=True)


async def time_out(bench: SessionBench) -> None:
    bench.engine.hold()
    await begin(bench, "t", timeout=Duration(nanos=50_000_000))
    await eventually(lambda: not bench.registry.is_active(KEY))
    bench.engine.release()


async def be_refused(bench: SessionBench) -> None:
    with pytest.raises(AntiphonError):
        await bench.run("")


async def not_be_kept(bench: SessionBench) -> None:
    """The store refuses the turn: another server has the session."""
    write = bench.store._writer.run
    await write(lambda file: file.execute("UPDATE sessions SET epoch = epoch + 9"))
    with pytest.raises(AntiphonError):
        await bench.run("hi", "t")
    await write(lambda file: file.execute("UPDATE sessions SET epoch = epoch - 9"))


async def append(bench: SessionBench) -> None:
    await bench.append("and more")


ENDS: list[Callable[[SessionBench], Awaitable[None]]] = [
    complete,
    cancel,
    discard,
    time_out,
    be_refused,
    not_be_kept,
    append,
]


@pytest.mark.parametrize("end", ENDS)
async def test_place_is_given_back(spec: BenchSpec, end: Callable[[SessionBench], Awaitable[None]]):
    spec.engine = lambda: FakeEngine(step_interval_s=0.002)
    spec.quotas = QuotaLimits(max_concurrent_requests=1)
    async with session_bench(spec) as bench:
        await bench.create()
        await end(bench)
        await eventually(lambda: not bench.registry.is_active(KEY))
        events = await bench.run("go on", "next")

    assert events[-1].HasField("completed")


async def test_one_turn_too_many_is_refused_at_once_and_leaves_no_trace(spec: BenchSpec):
    spec.quotas = QuotaLimits(max_concurrent_requests=1)
    async with session_bench(spec) as bench:
        bench.engine.hold()
        await bench.create()
        await begin(bench, "t1")
        with pytest.raises(AntiphonError) as caught:
            await begin(bench, "t2")
        known = asyncio.create_task(begin(bench, "t1"))
        await asyncio.wait_for(known, 60)
        bench.engine.release()
        await eventually(lambda: not bench.registry.is_active(KEY))
        session = await bench.session()

    assert caught.value.reason is ErrorReason.QUOTA_EXCEEDED
    assert session.num_turns == 1


async def test_turns_taken_up_by_the_next_server_hold_places_there(spec: BenchSpec):
    spec.quotas = QuotaLimits(max_concurrent_requests=1)
    async with session_bench(spec) as bench:
        bench.engine.hold()
        await bench.create()
        await begin(bench, "t1")
    spec.engine = lambda: FakeEngine(step_interval_s=0.02)
    async with session_bench(spec) as bench:
        with pytest.raises(AntiphonError) as caught:
            await begin(bench, "t2")
        await eventually(lambda: not bench.registry.is_active(KEY))
        events = await bench.run("go on", "t3")

    assert caught.value.metadata["quota"] == "max_concurrent_requests"
    assert events[-1].HasField("completed")
