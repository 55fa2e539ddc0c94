"""The server's event loop: uvloop where it is there, with gRPC's wake-ups kept from piling up."""

import asyncio
import fcntl
import socket
import struct
import termios
from collections.abc import Callable
from functools import partial
from typing import Final

_INT: Final = struct.Struct("i")
_GRPC_QUEUE: Final = "PollerCompletionQueue"


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Returns a loop to serve on.

    For each thing that gRPC has done, its thread writes a byte into a socket; the loop reads one at
    a time, though it then handles all that was done. On a busy loop bytes are left over in every
    round, until the socket is full and gRPC's thread waits for room: from then on one write is
    confirmed a round, and streams fall behind by seconds. So the loop reads all of them first.
    """
    loop = _plain_loop()
    add_reader = loop.add_reader

    def add_reader_once_a_round(
        source: socket.socket | int, callback: Callable[..., object], *args: object
    ) -> None:
        if isinstance(source, socket.socket) and is_of_grpc(callback):
            callback = partial(_call_behind_the_rest, source, callback)
        add_reader(source, callback, *args)

    loop.add_reader = add_reader_once_a_round  # type: ignore[method-assign, assignment]
    return loop


def _plain_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:  # Not on every system; it is only faster.
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def is_of_grpc(callback: Callable[..., object]) -> bool:
    """Whether a reader is the one by which gRPC's thread wakes the loop."""
    function = callback.func if isinstance(callback, partial) else callback
    return type(getattr(function, "__self__", None)).__name__ == _GRPC_QUEUE


def _call_behind_the_rest(
    source: socket.socket, callback: Callable[..., object], *args: object
) -> None:
    """Reads all bytes but one, which the callback reads. Only this loop takes any out."""
    (num_waiting,) = _INT.unpack(fcntl.ioctl(source, termios.FIONREAD, _INT.pack(0)))
    if num_waiting > 1:
        source.recv(num_waiting - 1)
    callback(*args)
