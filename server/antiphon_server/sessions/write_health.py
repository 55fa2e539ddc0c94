"""Whether what is written reaches the store's file."""

import asyncio
import sqlite3
from collections.abc import Callable

import structlog

_ONE_WRITES_OWN = (
    sqlite3.IntegrityError,
    sqlite3.DataError,
    sqlite3.ProgrammingError,
    sqlite3.InterfaceError,
    sqlite3.NotSupportedError,
)
"""Faults of what was to be written, not of the file."""


class WriteHealth:
    """Follows the writes of one store: a fault begins with one and ends with the next that works.

    The writer's thread notes what it meets; whoever follows is told on its event loop.
    """

    def __init__(self) -> None:
        self._fault = ""
        self._follower: tuple[asyncio.AbstractEventLoop, Callable[[bool], None]] | None = None

    @property
    def writable(self) -> bool:
        """Whether the last write reached the file. May be asked from any thread."""
        return not self._fault

    def follow(self, callback: Callable[[bool], None]) -> None:
        """Calls `callback` on this event loop with `writable` whenever that changes."""
        self._follower = (asyncio.get_running_loop(), callback)

    def note_failure(self, error: Exception) -> None:
        """Notes that a write failed."""
        if isinstance(error, sqlite3.Error) and not isinstance(error, _ONE_WRITES_OWN):
            self._note(str(error))

    def note_success(self) -> None:
        """Notes that a write reached the file."""
        self._note("")

    def _note(self, fault: str) -> None:
        before, self._fault = self._fault, fault
        if bool(before) == bool(fault):
            return
        log = structlog.get_logger()
        if fault:
            log.error("the session store can't be written", cause=fault)
        else:
            log.info("the session store can be written again")
        if self._follower is not None:
            loop, callback = self._follower
            if not loop.is_closed():
                loop.call_soon_threadsafe(callback, not fault)
