"""Writes of a call that no task is woken for."""

import asyncio

import grpc
import pytest
from antiphon.v1.session_pb2 import ConverseResponse

from antiphon_server.call_writer import CallWriter
from support.direct_frames import DirectFrames

MESSAGE = ConverseResponse()


class GoneCall:
    """A call whose caller has left."""

    num_writes = 0

    async def write(self, message: ConverseResponse) -> None:
        del message
        self.num_writes += 1
        raise grpc.aio.UsageError("RPC already finished.")


@pytest.fixture
def frames() -> DirectFrames:
    return DirectFrames()


@pytest.fixture
def writer(frames: DirectFrames) -> CallWriter:
    return CallWriter(frames, check=lambda: None)


async def test_write_is_told_of_once_the_transport_has_taken_it(
    writer: CallWriter, frames: DirectFrames
):
    written: list[str] = []
    writer.begin(MESSAGE, lambda: written.append("one"))
    assert writer.is_busy
    assert not written

    frames.take()
    await writer.free()

    assert written == ["one"]
    assert not writer.is_busy


async def test_next_write_may_begin_where_the_last_one_is_told_of(
    writer: CallWriter, frames: DirectFrames
):
    written: list[str] = []

    def begin_another() -> None:
        written.append("one")
        writer.begin(MESSAGE, lambda: written.append("two"))

    writer.begin(MESSAGE, begin_another)
    frames.take()
    await asyncio.wait_for(frames.arrive(), 60)
    frames.take()
    await writer.free()

    assert written == ["one", "two"]


async def test_who_waits_until_it_is_free_waits_for_writes_that_follow(
    writer: CallWriter, frames: DirectFrames
):
    writer.begin(MESSAGE, lambda: writer.begin(MESSAGE, lambda: None))
    free = asyncio.create_task(writer.free())
    frames.take()
    await asyncio.wait_for(frames.arrive(), 60)
    assert not free.done()

    frames.take()
    await asyncio.wait_for(free, 60)

    assert frames.num_taken == 2


async def test_messages_of_a_call_that_is_gone_are_dropped():
    call = GoneCall()
    writer = CallWriter(call, check=lambda: None)
    written: list[str] = []

    for _ in range(2):
        writer.begin(MESSAGE, lambda: written.append("never"))

    await asyncio.wait_for(writer.free(), 60)
    assert not written
    assert call.num_writes == 1


@pytest.mark.parametrize("fails", ["the write", "what is told of it"])
async def test_who_waits_until_it_is_free_goes_on_whatever_fails(fails: str):
    taken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    raised: list[object] = []
    asyncio.get_running_loop().set_exception_handler(
        lambda _, context: raised.append(type(context["exception"]))
    )

    class FailingCall:
        async def write(self, message: ConverseResponse) -> None:
            del message
            await taken
            if fails == "the write":
                raise ValueError

    def note() -> None:
        raise ValueError

    writer = CallWriter(FailingCall(), check=lambda: None)
    writer.begin(MESSAGE, note)
    free = asyncio.create_task(writer.free())
    await asyncio.sleep(0)

    taken.set_result(None)

    await asyncio.wait_for(free, 10)
    assert raised == [ValueError]
    assert not writer.is_busy
