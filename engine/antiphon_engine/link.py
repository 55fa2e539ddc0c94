"""The engine's end of the socket to its front end."""

import select
import socket
import time
from typing import Protocol

from antiphon_engine.api.frames import FrameError, encode_frame, engine_reader
from antiphon_engine.api.messages import ToEngine, ToFrontEnd

_READ_BYTES = 1 << 20
_MAX_READS = 64


class FrontEndGoneError(Exception):
    """The front end has closed the socket, or no longer reads it: nobody is left to work for."""


class MessageLink(Protocol):
    """What the loop needs of its front end: a process at a socket, or whoever drives a loop."""

    def receive(self, timeout_s: float) -> list[ToEngine]:
        """Returns the messages that have come, in order; waits up to `timeout_s` if none has."""

    def send(self, message: ToFrontEnd) -> None:
        """Sends a message without waiting."""


class FrontEndLink:
    """Receives and sends messages without ever waiting longer than asked. Used by one thread."""

    def __init__(self, sock: socket.socket, *, max_unsent_bytes: int = 64 << 20) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._reader = engine_reader()
        self._unsent = bytearray()
        self._max_unsent_bytes = max_unsent_bytes
        self._poll = select.poll()

    def receive(self, timeout_s: float) -> list[ToEngine]:
        """Returns the messages that have come, in order; waits up to `timeout_s` if none has.

        Raises:
            FrontEndGoneError: the front end is gone.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            wait_s = max(0.0, deadline - time.monotonic())
            if not self._wait(wait_s):
                return []
            self._flush()
            messages = self._read()
            if messages or time.monotonic() >= deadline:
                return messages

    def send(self, message: ToFrontEnd) -> None:
        """Sends `message` now as far as the socket takes it, the rest with later calls.

        Raises:
            FrontEndGoneError: the front end is gone, or has left too much unread.
        """
        self._unsent += encode_frame(message)
        self._flush()
        if len(self._unsent) > self._max_unsent_bytes:
            raise FrontEndGoneError(
                f"the front end has left {len(self._unsent)} bytes unread; "
                f"at most {self._max_unsent_bytes} may wait"
            )

    def drain(self, timeout_s: float) -> None:
        """Waits until all is sent, `timeout_s` at most. Raises FrontEndGoneError."""
        deadline = time.monotonic() + timeout_s
        while self._unsent and time.monotonic() < deadline:
            self._wait(deadline - time.monotonic())
            self._flush()

    def close(self) -> None:
        """Lets go of the socket."""
        self._socket.close()

    def _wait(self, timeout_s: float) -> bool:
        events = select.POLLIN | (select.POLLOUT if self._unsent else 0)
        self._poll.register(self._socket, events)
        return bool(self._poll.poll(timeout_s * 1000))

    def _read(self) -> list[ToEngine]:
        messages: list[ToEngine] = []
        # Bounded, so that a front end that sends without pause can't hold up the running requests.
        for _ in range(_MAX_READS):
            try:
                data = self._socket.recv(_READ_BYTES)
            except BlockingIOError:
                break
            except OSError as error:
                raise FrontEndGoneError(f"the link broke: {error}") from error
            if not data:
                raise FrontEndGoneError("the front end has closed the link")
            try:
                messages += self._reader.feed(data)
            except FrameError as error:
                raise FrontEndGoneError(f"the link carries {error}") from error
        return messages

    def _flush(self) -> None:
        while self._unsent:
            try:
                num_sent = self._socket.send(self._unsent)
            except BlockingIOError:
                return
            except OSError as error:
                raise FrontEndGoneError(f"the link broke: {error}") from error
            del self._unsent[:num_sent]
