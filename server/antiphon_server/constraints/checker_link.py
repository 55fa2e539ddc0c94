"""The front end's end of the link to the checker process: started, asked, started again."""

import asyncio
import contextlib
import itertools
import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from typing import Final, cast

import msgspec
import structlog

from antiphon_engine.api.frames import FrameError, FrameReader, encode_frame
from antiphon_server.constraints.check_messages import (
    Answer,
    CheckerStart,
    FromChecker,
    Job,
    Loaded,
)

_STANDARD_ERROR: Final = 2
_FIRST_RESTART_DELAY_S: Final = 0.1
_LAST_RESTART_DELAY_S: Final = 30.0

_log = structlog.get_logger(__name__)


class CheckerGoneError(Exception):
    """The checker process has ended before it answered."""


def checker_command() -> list[str]:
    """Returns the command that runs the checker in this process's Python."""
    return [sys.executable, "-m", "antiphon_server.constraints.checker_process"]


class CheckerLink:
    """A checker process, kept running from its first use on. Used on one event loop."""

    def __init__(
        self, start: Callable[[], CheckerStart], *, command: Sequence[str] | None = None
    ) -> None:
        """Sets how it is started.

        Args:
            start: Returns what the process is told; asked at each start.
            command: Runs it; None: this Python's checker.
        """
        self._start_message = start
        self._command = tuple(command or checker_command())
        self._job_ids = itertools.count(1)
        self._pending: dict[int, asyncio.Future[Answer]] = {}
        self._connection: _Connection | None = None
        self._loaded: asyncio.Future[None] | None = None
        self._supervisor: asyncio.Task[None] | None = None
        self._process_id: int | None = None
        self._closed = False

    @property
    def process_id(self) -> int | None:
        """The running process, for those who watch it; None where there is none."""
        return self._process_id

    def start(self) -> None:
        """Starts the process in the background, where it has not been yet."""
        if self._supervisor is None and not self._closed:
            self._loaded = asyncio.get_running_loop().create_future()
            self._supervisor = asyncio.create_task(self._supervise(), name="checker supervisor")

    async def ask(self, make: Callable[[int], Job], *, limit_s: float) -> Answer:
        """Returns the answer to a job, which is made for the id that it gets.

        Raises:
            CheckerGoneError: there is none.
            TimeoutError: there was none for so long.
        """
        self.start()
        async with asyncio.timeout(limit_s):
            return await self._ask(make)

    async def close(self) -> None:
        """Ends the process. Idempotent."""
        self._closed = True
        if self._supervisor is not None:
            self._supervisor.cancel()
            await asyncio.wait({self._supervisor})

    async def _ask(self, make: Callable[[int], Job]) -> Answer:
        if self._closed or self._loaded is None:
            raise CheckerGoneError("the server is about to stop")
        await asyncio.shield(self._loaded)
        connection = self._connection
        assert connection is not None, "it is loaded"
        job_id = next(self._job_ids)
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._pending[job_id] = future
        try:
            connection.send(make(job_id))
            return await future
        finally:
            del self._pending[job_id]

    def _take(self, message: FromChecker) -> None:
        if isinstance(message, Loaded):
            assert self._loaded is not None
            if not self._loaded.done():
                self._loaded.set_result(None)
            return
        future = self._pending.get(message.job_id)
        if future is not None and not future.done():
            future.set_result(message)

    async def _supervise(self) -> None:
        """Starts the process again and again, until it is cancelled."""
        delay_s = _FIRST_RESTART_DELAY_S
        try:
            while True:
                problem = await self._run_process()
                assert self._loaded is not None
                if self._loaded.done():
                    delay_s = _FIRST_RESTART_DELAY_S
                    self._loaded = asyncio.get_running_loop().create_future()
                _log.error("the checker ended; it is started again", cause=problem, delay_s=delay_s)
                await asyncio.sleep(delay_s)
                delay_s = min(2 * delay_s, _LAST_RESTART_DELAY_S)
        finally:
            self._lose("the server is about to stop")
            if self._loaded is not None and not self._loaded.done():
                self._loaded.set_exception(CheckerGoneError("the server is about to stop"))
                self._loaded.exception()  # Marks it as seen: there may be nobody who waits.

    async def _run_process(self) -> str:
        """Runs one process until it has ended, and returns why."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command,
                "--link-fd",
                str(theirs.fileno()),
                stdin=asyncio.subprocess.PIPE,
                stdout=_STANDARD_ERROR,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        except OSError as error:
            ours.close()
            return f"{self._command[0]!r} can't be run: {error}"
        finally:
            theirs.close()
        self._process_id = process.pid
        connection: _Connection | None = None
        try:
            connection = self._connection = await _Connection.open(ours, self._take)
            assert process.stdin is not None
            with contextlib.suppress(RuntimeError, OSError):
                process.stdin.write(msgspec.json.encode(self._start_message()))
                process.stdin.close()
            why = await connection.lost
        finally:
            self._connection = self._process_id = None
            if connection is None:
                ours.close()
            else:
                connection.close()
            # Its workers too: it leads their group.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
            self._lose("it ended")
        return why

    def _lose(self, why: str) -> None:
        for future in self._pending.values():
            if not future.done():
                future.set_exception(CheckerGoneError(why))


class _Connection(asyncio.Protocol):
    """Sends jobs and hands what comes to a callback, until the other end has gone."""

    def __init__(self, on_message: Callable[[FromChecker], None]) -> None:
        self._on_message = on_message
        self._reader: FrameReader[FromChecker] = FrameReader(msgspec.msgpack.Decoder(FromChecker))
        self._transport: asyncio.Transport | None = None
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Done when nothing more comes; says why."""

    @classmethod
    async def open(
        cls, link: socket.socket, on_message: Callable[[FromChecker], None]
    ) -> "_Connection":
        """Takes over a connected socket."""
        link.setblocking(False)
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_unix_connection(lambda: cls(on_message), sock=link)
        return connection

    def send(self, job: Job) -> None:
        """Sends a job; dropped where the other end has gone."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(encode_frame(job))

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
        try:
            messages = self._reader.feed(data)
        except FrameError as error:
            self._lose(f"it sent {error}")
            self.close()
            return
        for message in messages:
            self._on_message(message)

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the event loop."""
        self._lose(str(exc) if exc is not None else "it closed the link")

    def _lose(self, why: str) -> None:
        if not self.lost.done():
            self.lost.set_result(why)
