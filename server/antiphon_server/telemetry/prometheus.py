"""The endpoint that Prometheus reads: one path, on a thread and an event loop of its own.

It answers GET and HEAD of /metrics, a request a connection. Whoever connects has a limited time for
all of it, and few are served at a time, so that nobody can keep others out for long: who comes
beyond those is told when to come back.
"""

import asyncio
import contextlib
import socket
import ssl
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from antiphon_engine.api.errors import AntiphonError
from antiphon_server.access.authentication import Authenticate
from antiphon_server.telemetry.metric_values import Family
from antiphon_server.telemetry.prometheus_text import CONTENT_TYPE, render

PATH: Final = "/metrics"
MAX_CONNECTIONS: Final = 16
MAX_HEAD_BYTES: Final = 16 << 10
REQUEST_LIMIT_S: Final = 10.0
"""What a connection may take from its first byte to its last."""
MAX_TURNED_AWAY: Final = 16
TURN_AWAY_LIMIT_S: Final = 1.0
"""The same for those beyond, who get an answer without metrics. Even more are cut off."""
_PLAIN: Final = "text/plain; charset=utf-8"


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointDoor:
    """What stands before it: the same as before the admin port."""

    authenticate: Authenticate
    tls: ssl.SSLContext | None = None
    """What encrypts; None: nothing does."""


@dataclass(frozen=True, slots=True)
class _Answer:
    status: HTTPStatus
    body: bytes
    content_type: str = _PLAIN
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(slots=True)
class _Room:
    """Connections that are treated alike, a few at a time."""

    max_connections: int
    limit_s: float
    num_connections: int = 0

    @property
    def is_full(self) -> bool:
        return self.num_connections >= self.max_connections


class PrometheusEndpoint:
    """Serves what `families` returns, until it is closed."""

    def __init__(
        self,
        listening: socket.socket,
        *,
        door: EndpointDoor,
        families: Callable[[], Sequence[Family]],
    ) -> None:
        """Sets what it serves; `start` begins.

        Args:
            listening: A bound socket; closed with this.
            door: Whom it serves.
            families: Returns all metrics; is called on a thread of this, and may wait.
        """
        self._socket = listening
        self._door = door
        self._families = families
        self._served = _Room(MAX_CONNECTIONS, REQUEST_LIMIT_S)
        self._turned_away = _Room(MAX_TURNED_AWAY, TURN_AWAY_LIMIT_S)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end: asyncio.Event | None = None
        self._rendering: asyncio.Lock | None = None
        self._thread = threading.Thread(target=self._work, name="prometheus", daemon=True)
        self._ready = threading.Event()

    def start(self) -> None:
        """Begins to serve."""
        self._thread.start()
        self._ready.wait()

    def close(self, limit_s: float) -> None:
        """Stops, and waits for that for so long. Blocks; idempotent."""
        loop, end = self._loop, self._end
        if loop is not None and end is not None:
            with contextlib.suppress(RuntimeError):  # It has ended already.
                loop.call_soon_threadsafe(end.set)
            self._thread.join(limit_s)
        self._socket.close()

    def _work(self) -> None:
        try:
            with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
                runner.run(self._serve())
        finally:
            self._ready.set()  # Whoever waits must not wait for a thread that has failed.

    async def _serve(self) -> None:
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        self._rendering = asyncio.Lock()
        is_unix = self._socket.family == socket.AF_UNIX
        start = asyncio.start_unix_server if is_unix else asyncio.start_server
        server = await start(
            self._connected,
            sock=self._socket,
            limit=MAX_HEAD_BYTES,
            backlog=MAX_CONNECTIONS + MAX_TURNED_AWAY,
            ssl=self._door.tls,
            ssl_handshake_timeout=REQUEST_LIMIT_S if self._door.tls else None,
        )
        self._ready.set()
        async with server:
            await self._end.wait()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        rooms = (self._served, self._turned_away)
        room = next((room for room in rooms if not room.is_full), None)
        if room is None:
            writer.transport.abort()
            return
        room.num_connections += 1
        try:
            async with asyncio.timeout(room.limit_s):
                await self._converse(reader, writer, is_served=room is self._served)
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            pass  # Whoever it was has left, or is too slow.
        finally:
            room.num_connections -= 1
            writer.transport.abort()

    async def _converse(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_served: bool
    ) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            status = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
            answer, is_head = _refusal(status, f"at most {MAX_HEAD_BYTES} bytes"), False
        else:
            line, _, fields = head.decode("latin-1").partition("\r\n")
            is_head = line.startswith("HEAD ")
            answer = await self._answer(line, fields, writer) if is_served else _come_back()
        writer.write(_as_bytes(answer, with_body=not is_head))
        await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
            await reader.read(1)  # Closed by the other side, with all of it read.
        else:
            writer.close()
            await writer.wait_closed()

    async def _answer(self, line: str, fields: str, writer: asyncio.StreamWriter) -> _Answer:
        method, _, rest = line.partition(" ")
        target, _, version = rest.partition(" ")
        if not version.startswith("HTTP/1."):
            return _refusal(HTTPStatus.BAD_REQUEST, "this speaks HTTP/1.1")
        if _path_of(target) != PATH:
            return _refusal(HTTPStatus.NOT_FOUND, f"there is {PATH} only")
        if method not in ("GET", "HEAD"):
            allow = (("Allow", "GET, HEAD"),)
            return _refusal(HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD", allow)
        try:
            self._door.authenticate(_ScrapeFacts(_fields(fields), writer))
        except AntiphonError:
            return _refusal(
                HTTPStatus.UNAUTHORIZED,
                "needs a credential that opens the admin port: 'Authorization: Bearer TOKEN'",
                (("WWW-Authenticate", "Bearer"),),
            )
        assert self._rendering is not None
        # One at a time: what many ask for at once is made for one after the other.
        async with self._rendering:
            return _Answer(HTTPStatus.OK, await asyncio.to_thread(self._render), CONTENT_TYPE)

    def _render(self) -> bytes:
        return render(self._families())


class _ScrapeFacts:
    """What tells who asks; see CallFacts."""

    def __init__(self, fields: Mapping[str, str], writer: asyncio.StreamWriter) -> None:
        self._fields = fields
        self._writer = writer

    def invocation_metadata(self) -> Iterable[tuple[str, str | bytes]]:
        """What was sent along."""
        return list(self._fields.items())

    def auth_context(self) -> Mapping[str, Iterable[bytes]]:
        """The names in the certificate, if there is one."""
        certificate = self._writer.get_extra_info("peercert") or {}
        subject = (pair for part in certificate.get("subject", ()) for pair in part)
        common = [value.encode() for key, value in subject if key == "commonName"]
        others = [value.encode() for _, value in certificate.get("subjectAltName", ())]
        return {"x509_common_name": common, "x509_subject_alternative_name": others}


def _fields(text: str) -> Mapping[str, str]:
    """Returns the header's fields, by names in small letters; of equal ones the last."""
    lines = (line.partition(":") for line in text.split("\r\n") if line)
    return {name.strip().lower(): value.strip() for name, _, value in lines}


def _path_of(target: str) -> str:
    """Returns the path that a request asks for, also where it names the server before it."""
    scheme, mark, rest = target.partition("?")[0].partition("://")
    if mark and scheme.lower() in ("http", "https"):
        return f"/{rest.partition('/')[2]}"
    return target.partition("?")[0]


def _come_back() -> _Answer:
    """Returns the answer where all places are taken; by then whoever has them is gone."""
    return _refusal(
        HTTPStatus.SERVICE_UNAVAILABLE,
        f"{MAX_CONNECTIONS} connections are served at a time; come back",
        (("Retry-After", f"{REQUEST_LIMIT_S:.0f}"),),
    )


def _refusal(status: HTTPStatus, why: str, headers: tuple[tuple[str, str], ...] = ()) -> _Answer:
    return _Answer(status, f"{status.phrase}: {why}\n".encode(), headers=headers)


def _as_bytes(answer: _Answer, *, with_body: bool) -> bytes:
    lines = [
        f"HTTP/1.1 {answer.status.value} {answer.status.phrase}",
        f"Content-Type: {answer.content_type}",
        f"Content-Length: {len(answer.body)}",
        "Connection: close",
        *(f"{name}: {value}" for name, value in answer.headers),
    ]
    head = "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n"
    return head + answer.body if with_body else head
