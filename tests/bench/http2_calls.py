"""gRPC streams on bare HTTP/2, for a load that must not take the time of what it measures.

Only as much as bidirectional calls to a well-behaved server take: requests below the initial
window, answers without a bound, headers that nobody reads.
"""

import asyncio
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, cast

_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_MAX_WINDOW: Final = (1 << 31) - 1
_DEFAULT_WINDOW: Final = (1 << 16) - 1
_HEAD_BYTES: Final = 9
_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING, _GOAWAY, _WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
_ACK: Final = 1
_END_STREAM: Final = 1
_END_HEADERS: Final = 4
_HEADER_TABLE_SIZE, _INITIAL_WINDOW_SIZE = 1, 4
_PREFIX: Final = struct.Struct(">BI")
"""Of each message: whether it is compressed, and its length."""

OnMessage = Callable[[bytes], None]
OnEnd = Callable[[], None]


@dataclass(slots=True)
class Call:
    """One call. Its callbacks are called as bytes come; neither waits."""

    connection: "Connection"
    stream_id: int
    on_message: OnMessage
    on_end: OnEnd
    received: bytearray = field(default_factory=bytearray)

    def send(self, message: bytes) -> None:
        """Sends a message."""
        body = _PREFIX.pack(0, len(message)) + message
        self.connection.write(_frame(_DATA, 0, self.stream_id, body))

    def end(self) -> None:
        """Sends no more."""
        self.connection.write(_frame(_DATA, _END_STREAM, self.stream_id, b""))

    def take(self, data: bytes) -> None:
        """Takes in what came, and hands over the messages that are whole."""
        received = self.received
        received += data
        start = 0
        while len(received) - start >= _PREFIX.size:
            compressed, size = _PREFIX.unpack_from(received, start)
            assert not compressed
            end = start + _PREFIX.size + size
            if end > len(received):
                break
            self.on_message(bytes(received[start + _PREFIX.size : end]))
            start = end
        del received[:start]


class Connection(asyncio.Protocol):
    """A connection and its calls. Used on one event loop."""

    def __init__(self) -> None:
        self._calls: dict[int, Call] = {}
        self._next_id = 1
        self._pending = bytearray()
        self._transport: asyncio.Transport | None = None

    @classmethod
    async def open(cls, target: str) -> "Connection":
        """Connects to a server as gRPC names it."""
        loop = asyncio.get_running_loop()
        if target.startswith("unix:"):
            _, made = await loop.create_unix_connection(cls, target.removeprefix("unix:"))
        else:
            host, _, port = target.rpartition(":")
            _, made = await loop.create_connection(cls, host, int(port))
        return made

    def call(self, path: str, on_message: OnMessage, on_end: OnEnd) -> Call:
        """Begins a call of a method."""
        call = Call(self, self._next_id, on_message, on_end)
        self._next_id += 2
        self._calls[call.stream_id] = call
        self.write(_frame(_HEADERS, _END_HEADERS, call.stream_id, _headers(path)))
        return call

    def write(self, data: bytes) -> None:
        """Sends frames."""
        assert self._transport is not None
        self._transport.write(data)

    def close(self) -> None:
        """Ends it, and all its calls."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the event loop."""
        self._transport = cast(asyncio.Transport, transport)
        settings = struct.pack(">HIHI", _HEADER_TABLE_SIZE, 0, _INITIAL_WINDOW_SIZE, _MAX_WINDOW)
        more = struct.pack(">I", _MAX_WINDOW - _DEFAULT_WINDOW)
        self.write(
            _PREFACE + _frame(_SETTINGS, 0, 0, settings) + _frame(_WINDOW_UPDATE, 0, 0, more)
        )

    def data_received(self, data: bytes) -> None:
        """Called by the event loop."""
        pending = self._pending
        pending += data
        start = 0
        while len(pending) - start >= _HEAD_BYTES:
            end = start + _HEAD_BYTES + int.from_bytes(pending[start : start + 3], "big")
            if end > len(pending):
                break
            kind, flags = pending[start + 3], pending[start + 4]
            stream_id = int.from_bytes(pending[start + 5 : start + 9], "big")
            self._take(kind, flags, stream_id, bytes(pending[start + _HEAD_BYTES : end]))
            start = end
        del pending[:start]

    def _take(self, kind: int, flags: int, stream_id: int, body: bytes) -> None:
        if kind == _DATA:
            self._calls[stream_id].take(body)
        elif kind == _SETTINGS and not flags & _ACK:
            self.write(_frame(_SETTINGS, _ACK, 0, b""))
        elif kind == _PING and not flags & _ACK:
            self.write(_frame(_PING, _ACK, 0, body))
        elif kind == _GOAWAY:
            raise ConnectionError(f"the server ends the connection: {body!r}")
        if kind == _RST_STREAM or (kind in (_DATA, _HEADERS) and flags & _END_STREAM):
            self._calls.pop(stream_id).on_end()


def _frame(kind: int, flags: int, stream_id: int, body: bytes) -> bytes:
    return len(body).to_bytes(3, "big") + struct.pack(">BBI", kind, flags, stream_id) + body


def _headers(path: str) -> bytes:
    """Returns a request's headers, each written out."""
    headers = {
        ":method": "POST",
        ":scheme": "http",
        ":path": path,
        ":authority": "localhost",
        "te": "trailers",
        "content-type": "application/grpc",
    }
    return b"".join(b"\0" + _text(name) + _text(value) for name, value in headers.items())


def _text(text: str) -> bytes:
    data = text.encode()
    assert len(data) < 127
    return bytes([len(data)]) + data
