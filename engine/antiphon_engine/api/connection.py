"""The front end's end of the socket to a process of its own, on the event loop."""

import asyncio
import socket
from collections.abc import Callable
from typing import Generic, TypeVar, cast

import msgspec

from antiphon_engine.api.frames import FrameError, FrameReader, encode_frame

_Message = TypeVar("_Message")


class Connection(asyncio.Protocol, Generic[_Message]):
    """Sends messages and hands those that come to a callback, until the other end is gone."""

    def __init__(
        self,
        reader: FrameReader[_Message],
        on_message: Callable[[_Message], None],
        on_read: Callable[[], None] | None,
    ) -> None:
        """Sets what gets each message, and what is called behind all that one read brought."""
        loop = asyncio.get_running_loop()
        self._on_message = on_message
        self._on_read = on_read
        self._reader = reader
        self._transport: asyncio.Transport | None = None
        self._clock = loop.time
        self.last_heard_s = loop.time()
        """When the other end last sent anything, on the event loop's clock."""
        self.lost: asyncio.Future[str] = loop.create_future()
        """Done when nothing more comes; says why."""

    @classmethod
    async def open(
        cls,
        link: socket.socket,
        reader: FrameReader[_Message],
        on_message: Callable[[_Message], None],
        on_read: Callable[[], None] | None = None,
    ) -> "Connection[_Message]":
        """Takes over a connected socket."""
        loop = asyncio.get_running_loop()
        link.setblocking(False)
        _, connection = await loop.create_unix_connection(
            lambda: cls(reader, on_message, on_read), sock=link
        )
        return connection

    @property
    def unsent_bytes(self) -> int:
        """What the other end has not taken yet."""
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    def send(self, message: msgspec.Struct) -> None:
        """Sends `message`; dropped where the other end is gone."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(encode_frame(message))

    def close(self) -> None:
        """Lets go of the socket, which ends a process that still runs."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the event loop."""
        # Not every event loop's transports are subclasses, though all have the methods.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Called by the event loop."""
        self.last_heard_s = self._clock()
        try:
            messages = self._reader.feed(data)
        except FrameError as error:
            self._lose(f"it sent {error}")
            self.close()
            return
        for message in messages:
            self._on_message(message)
        if self._on_read is not None:
            self._on_read()

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the event loop."""
        self._lose(str(exc) if exc is not None else "it closed the link")

    def _lose(self, why: str) -> None:
        if not self.lost.done():
            self.lost.set_result(why)
