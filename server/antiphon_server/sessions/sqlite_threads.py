"""The two threads that use the SQLite file: one writes, with group commit, and one reads."""

import asyncio
import queue
import sqlite3
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Generic, TypeVar

from google.protobuf.message import DecodeError

from antiphon_engine.api.errors import AntiphonError, ErrorReason
from antiphon_server.sessions.file_place import FilePlace
from antiphon_server.sessions.write_health import WriteHealth

T = TypeVar("T")
Operation = Callable[[sqlite3.Connection], T]

DAMAGE: Final = (sqlite3.Error, DecodeError, ValueError)
"""What comes of a file that can't be read or written, or whose rows are not what was written."""

MAX_BATCH: Final = 256
MAX_WAITING: Final = 4096
MAX_WAIT_S: Final = 30.0
TRIAL_INTERVAL_S: Final = 1.0
"""How often the file is tried while no write reaches it."""
TRIAL_BYTES: Final = 256 << 10


def store_unavailable(cause: str) -> AntiphonError:
    """Returns the error for a store that can't be read or written now."""
    return AntiphonError(
        ErrorReason.STORE_UNAVAILABLE,
        f"The session store can't be used: {cause}. Nothing was changed; try again.",
        retry_delay_s=1.0,
    )


class Writer:
    """Runs writes in one thread; all that wait go into one transaction, and so into one sync.

    While none reaches the file it tries by itself, so that the end of a fault is seen although
    nobody is sent here any more.
    """

    def __init__(
        self, connection: sqlite3.Connection, place: FilePlace, *, max_wait_s: float = MAX_WAIT_S
    ) -> None:
        """Sets what is written to, where that is, and how long a write may wait to begin."""
        self.health: Final = WriteHealth()
        self._max_wait_s = max_wait_s
        self._connection = connection
        self._place = place
        self._jobs: queue.SimpleQueue[_Job[object] | None] = queue.SimpleQueue()
        self._num_waiting = 0
        self._closed = False
        self._thread = threading.Thread(
            target=self._serve, name="session-store-writer", daemon=True
        )
        self._thread.start()

    async def run(self, operation: Operation[T]) -> T:
        """Runs a write and returns what it returns once that is durable.

        An AntiphonError that it raises undoes this write alone and comes out here. One that has
        begun is waited for however long the disk takes: what is told of it must be what the file
        has, also behind a restart.

        Raises:
            AntiphonError: STORE_UNAVAILABLE.
        """
        if self._closed:
            raise store_unavailable("the server is stopping")
        if self._num_waiting >= MAX_WAITING:
            raise store_unavailable(f"{MAX_WAITING} writes wait already")
        job: _Job[T] = _Job(operation, asyncio.get_running_loop())
        self._num_waiting += 1
        self._jobs.put(job)  # type: ignore[arg-type]  # the thread only runs it
        try:
            await asyncio.wait({job.done}, timeout=self._max_wait_s)
            if job.done.done():
                return job.done.result()
            cause = f"no write ended within {self._max_wait_s:g} s"
            self.health.note_failure(sqlite3.OperationalError(cause))
            if job.withdraw():
                raise store_unavailable(cause)
            return await job.done
        except asyncio.CancelledError:
            job.withdraw()
            job.done.cancel()
            raise
        finally:
            self._num_waiting -= 1

    async def close(self) -> None:
        """Ends the thread behind the writes that wait."""
        self._closed = True
        self._jobs.put(None)
        await asyncio.to_thread(self._thread.join)
        self._connection.close()

    def _serve(self) -> None:
        ends = False
        while not ends:
            try:
                first = self._jobs.get(timeout=None if self.health.writable else TRIAL_INTERVAL_S)
            except queue.Empty:
                self._try_to_write()
                continue
            batch = [] if first is None else [first]
            ends = first is None
            while not ends and len(batch) < MAX_BATCH and not self._jobs.empty():
                job = self._jobs.get()
                ends = job is None
                batch += [] if job is None else [job]
            self._commit([job for job in batch if job.begin()])

    def _commit(self, batch: Sequence["_Job[object]"]) -> None:
        """Writes all of a batch; where that fails, each by itself, so that none fails others."""
        try:
            self._write(batch)
        except DAMAGE as error:
            self._roll_back()
            if len(batch) > 1 and not _is_locked(error):
                for job in batch:
                    self._commit([job])
            else:
                self.health.note_failure(error)
                for job in batch:
                    job.fail(store_unavailable(str(error)))
        else:
            # One that was refused wrote nothing, and says nothing of the file.
            if any(job.has_result for job in batch):
                self.health.note_success()
            for job in batch:
                job.settle()

    def _try_to_write(self) -> None:
        """Writes as much as a turn may take, and takes it back."""
        try:
            self._place.check()
            self._connection.execute("BEGIN IMMEDIATE")
            self._connection.execute("CREATE TABLE IF NOT EXISTS trial (filling BLOB)")
            self._connection.execute("INSERT INTO trial VALUES (zeroblob(?))", (TRIAL_BYTES,))
            self._connection.execute("COMMIT")
            self._connection.execute("DROP TABLE trial")
        except sqlite3.Error as error:
            self._roll_back()
            self.health.note_failure(error)
        else:
            self.health.note_success()

    def _roll_back(self) -> None:
        if self._connection.in_transaction:
            self._connection.rollback()

    def _write(self, batch: Sequence["_Job[object]"]) -> None:
        if not batch:
            return
        self._place.check()
        self._connection.execute("BEGIN IMMEDIATE")
        for job in batch:
            job.execute(self._connection)
        self._connection.execute("COMMIT")


class Reader:
    """Runs reads in one thread of its own; it sees all that was committed before."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="session-store-reader")

    async def run(self, operation: Operation[T]) -> T:
        """Runs a read. Raises AntiphonError, STORE_UNAVAILABLE."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(MAX_WAIT_S):
                return await loop.run_in_executor(self._thread, operation, self._connection)
        except TimeoutError:
            raise store_unavailable(f"no read ended within {MAX_WAIT_S:.0f} s") from None
        except DAMAGE as error:
            raise store_unavailable(str(error)) from error

    async def close(self) -> None:
        """Ends the thread."""
        await asyncio.to_thread(self._thread.shutdown)
        self._connection.close()


class _Job(Generic[T]):
    """A write on its way through the writer's thread and back."""

    def __init__(self, operation: Operation[T], loop: asyncio.AbstractEventLoop) -> None:
        self.done: asyncio.Future[T] = loop.create_future()
        self._operation = operation
        self._loop = loop
        self._result: T | None = None
        self._error: AntiphonError | None = None
        self._claim = threading.Lock()

    def begin(self) -> bool:
        """Whether it is wanted; it then can't be withdrawn. Called from the writer's thread."""
        return self._claim.acquire(blocking=False)

    def withdraw(self) -> bool:
        """Whether it had not begun, and so never will."""
        return self._claim.acquire(blocking=False)

    @property
    def has_result(self) -> bool:
        """Whether it was executed, and not refused."""
        return self._error is None

    def execute(self, connection: sqlite3.Connection) -> None:
        """Runs it inside the open transaction. Called from the writer's thread."""
        connection.execute("SAVEPOINT job")
        self._error = None
        try:
            self._result = self._operation(connection)
        except AntiphonError as error:
            self._error = error
            connection.execute("ROLLBACK TO job")
        connection.execute("RELEASE job")

    def settle(self) -> None:
        """Tells the waiter what came of it. Called from the writer's thread."""
        if self._error is not None:
            self.fail(self._error)
        else:
            self._tell(lambda: self.done.set_result(self._result))  # type: ignore[arg-type]

    def fail(self, error: AntiphonError) -> None:
        """Tells the waiter that it failed. Called from the writer's thread."""
        self._tell(lambda: self.done.set_exception(error))

    def _tell(self, news: Callable[[], None]) -> None:
        def unless_nobody_waits() -> None:
            if not self.done.done():
                news()

        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(unless_nobody_waits)


def _is_locked(error: Exception) -> bool:
    """Whether another process holds the file, so that each further try would wait as long."""
    code = getattr(error, "sqlite_errorcode", None)
    return code is not None and code & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
