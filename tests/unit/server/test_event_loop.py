"""The event loop under gRPC's wake-ups."""

import asyncio
import socket
from functools import partial

import grpc

from antiphon_server.event_loop import is_of_grpc, new_event_loop


class PollerCompletionQueue:
    """Reads as gRPC's does: one byte a call, for whatever was done."""

    def __init__(self, source: socket.socket) -> None:
        self._source = source
        self.num_calls = 0

    def _handle_events(self, _loop: asyncio.AbstractEventLoop) -> None:
        self._source.recv(1)
        self.num_calls += 1


class OtherQueue(PollerCompletionQueue):
    pass


def calls_for_bytes(kind: type[PollerCompletionQueue], num_bytes: int) -> int:
    """Returns how often a reader was called until all bytes were read."""
    ours, theirs = socket.socketpair()
    queue = kind(ours)

    async def read_all(loop: asyncio.AbstractEventLoop) -> None:
        loop.add_reader(ours, partial(queue._handle_events, loop))
        theirs.send(bytes(num_bytes))
        for _ in range(3 * num_bytes):
            await asyncio.sleep(0)
        loop.remove_reader(ours)

    with ours, theirs, asyncio.Runner(loop_factory=new_event_loop) as runner:
        ours.setblocking(False)
        runner.run(read_all(runner.get_loop()))
    return queue.num_calls


def test_wake_ups_of_grpc_that_have_piled_up_take_one_round():
    assert calls_for_bytes(PollerCompletionQueue, 200) == 1


def test_other_readers_are_called_as_ever():
    assert calls_for_bytes(OtherQueue, 200) == 200


def test_the_reader_of_grpc_is_recognized():
    seen = []

    class Recording(asyncio.SelectorEventLoop):
        def add_reader(self, fd, callback, *args):
            seen.append(is_of_grpc(callback))
            super().add_reader(fd, callback, *args)

    async def serve() -> None:
        server = grpc.aio.server()
        server.add_insecure_port("127.0.0.1:0")
        await server.start()
        await server.stop(0)

    with asyncio.Runner(loop_factory=Recording) as runner:
        runner.run(serve())

    assert True in seen
