"""The front end's end of the link to the checker process: started, asked, started again."""

import asyncio
import itertools
import sys
from collections.abc import Callable, Sequence
from typing import Final

import msgspec
import structlog
from msgspec.structs import replace

from antiphon_engine.api.connection import Connection
from antiphon_engine.api.frames import FrameReader
from antiphon_engine.api.linked_process import spawn
from antiphon_server.constraints.check_messages import (
    Answer,
    CheckerStart,
    FromChecker,
    Job,
    Loaded,
)

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
        self._connection: Connection[FromChecker] | None = None
        self._loaded: asyncio.Future[None] | None = None
        self._supervisor: asyncio.Task[None] | None = None
        self._process_id: int | None = None
        self._num_waiting = 0
        """Jobs that the process is to be loaded for."""
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

    async def load(self) -> None:
        """Starts the process and waits until it has loaded.

        Raises:
            CheckerGoneError: it won't any more, since this is closed.
        """
        self.start()
        if self._loaded is None:
            raise CheckerGoneError("the server is about to stop")
        await asyncio.shield(self._loaded)

    async def ask(self, make: Callable[[int], Job], *, limit_s: float) -> Answer:
        """Returns the answer to a job, which is made for the id that it gets.

        Raises:
            CheckerGoneError: there is none.
            TimeoutError: there was none for so long.
        """
        async with asyncio.timeout(limit_s):
            return await self._ask(make)

    async def close(self) -> None:
        """Ends the process. Idempotent."""
        self._closed = True
        if self._supervisor is not None:
            self._supervisor.cancel()
            await asyncio.wait({self._supervisor})

    async def _ask(self, make: Callable[[int], Job]) -> Answer:
        if self._closed:
            raise CheckerGoneError("the server is about to stop")
        self._num_waiting += 1
        try:
            await self.load()
        finally:
            self._num_waiting -= 1
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
        try:
            start = replace(self._start_message(), is_waited_for=self._num_waiting > 0)
            started = spawn(self._command, start)
        except OSError as error:
            return f"{self._command[0]!r} can't be run: {error}"
        self._process_id = started.process.pid
        connection: Connection[FromChecker] | None = None
        try:
            reader = FrameReader(msgspec.msgpack.Decoder(FromChecker))
            connection = self._connection = await Connection.open(started.link, reader, self._take)
            why = await connection.lost
        finally:
            self._connection = self._process_id = None
            if connection is None:
                started.link.close()
            else:
                connection.close()
            await started.end(0.0)
            self._lose("it ended")
        return why

    def _lose(self, why: str) -> None:
        for future in self._pending.values():
            if not future.done():
                future.set_exception(CheckerGoneError(why))
