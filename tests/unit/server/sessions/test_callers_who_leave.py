"""Calls that are given up in the middle of a change: it is carried out whole, or not at all."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Coroutine

import pytest
from antiphon.v1.session_pb2 import CreateSessionRequest, Session, UpdateSessionRequest
from google.protobuf.field_mask_pb2 import FieldMask

from antiphon_engine.api.errors import AntiphonError, ErrorReason
from support.session_bench import KEY, SessionBench, eventually


class Gate:
    """A write that holds the store's writer until it is let on."""

    def __init__(self) -> None:
        self._reached = threading.Event()
        self._opened = threading.Event()

    def write(self, _file: object) -> None:
        self._reached.set()
        assert self._opened.wait(60)

    async def reached(self) -> None:
        assert await asyncio.to_thread(self._reached.wait, 10)

    def open(self) -> None:
        self._opened.set()


@contextlib.asynccontextmanager
async def given_up_while_written(
    bench: SessionBench, call: Coroutine[None, None, object]
) -> AsyncIterator[None]:
    """Gives a call up when its write was made and is not committed; enters behind the commit."""
    # The sweep of the start writes too; one more ends behind it, and then nothing else does.
    await bench.registry._sweeper.sweep()
    writer, before, behind = bench.store._writer, Gate(), Gate()
    gates = [asyncio.create_task(writer.run(before.write))]
    await before.reached()
    given_up = asyncio.create_task(call)
    await eventually(lambda: writer._num_waiting == 2)
    gates.append(asyncio.create_task(writer.run(behind.write)))
    await asyncio.sleep(0)
    before.open()
    await behind.reached()
    given_up.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await given_up
    behind.open()
    await asyncio.gather(*gates)
    yield


async def test_an_update_that_is_given_up_is_kept_in_memory_as_in_the_store(bench: SessionBench):
    await bench.create(instructions="old")
    update = bench.registry.update(
        "",
        UpdateSessionRequest(
            session=Session(name=KEY.name, instructions="new"),
            update_mask=FieldMask(paths=["instructions"]),
        ),
    )

    async with given_up_while_written(bench, update):
        kept = await bench.store.read_session(KEY)
        assert kept is not None
        assert kept.session.instructions == "new"
        # Memory follows the store a moment later.
        for _ in range(10_000):
            told = await bench.session()
            if told.instructions == "new":
                break
        assert told.instructions == "new"

    await bench.run("hi")
    kept = await bench.store.read_session(KEY)
    assert kept is not None
    assert kept.session.instructions == "new"


async def test_a_session_whose_creation_is_given_up_counts(bench: SessionBench):
    create = bench.registry.create("", CreateSessionRequest(session_id="a"))

    async with given_up_while_written(bench, create):
        await eventually(lambda: bench.registry.num_sessions == 1)

    assert (await bench.session()).name == KEY.name


async def test_a_deletion_that_is_given_up_while_written_has_happened(bench: SessionBench):
    await bench.create()

    async with given_up_while_written(bench, bench.registry.delete(KEY, "")):
        await eventually(lambda: bench.registry.num_sessions == 0)

    with pytest.raises(AntiphonError) as caught:
        await bench.session()
    assert caught.value.reason is ErrorReason.SESSION_NOT_FOUND
    await bench.create()
    assert await bench.run("hi")


async def test_a_deletion_that_is_given_up_while_a_turn_ends_goes_on(bench: SessionBench):
    await bench.create()
    bench.engine.hold()
    turn = asyncio.create_task(bench.run("hi", "t1", max_tokens=100))
    await eventually(lambda: bool(bench.engine.requests))
    # It waits in the engine, which answers no cancellation before its next step.
    delete = asyncio.create_task(bench.registry.delete(KEY, ""))
    await asyncio.sleep(0)
    delete.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await delete
    await turn

    await eventually(lambda: bench.registry.num_sessions == 0)
    with pytest.raises(AntiphonError) as caught:
        await bench.session()
    assert caught.value.reason is ErrorReason.SESSION_NOT_FOUND
