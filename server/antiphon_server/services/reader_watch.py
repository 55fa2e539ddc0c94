"""Whether a stream's reader is there: one that takes nothing for too long loses its stream."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from antiphon_server.sessions.surroundings import Surroundings
from antiphon_server.times import NS_PER_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Grace:
    """How long a reader may take nothing, and by which clock."""

    grace_s: float
    clock_ns: Callable[[], int]


def grace_of(surroundings: Surroundings) -> Grace:
    """Returns what streams on sessions go by."""
    return Grace(
        grace_s=surroundings.limits.slow_reader_grace_s,
        clock_ns=surroundings.clock.monotonic_ns,
    )


class ReaderWatch:
    """Times two waits for one reader: for the transport to take a message, and for acknowledgement.

    A stream that waits in a `yield` can't be ended from inside. So whoever is told that the reader
    is away lets go of all that the stream holds, and the stream ends when the transport lets it.
    Looking costs nothing by message: one timer looks at when the waits began.
    """

    __slots__ = (
        "_acks_since_ns",
        "_grace",
        "_on_away",
        "_reader_left",
        "_timer",
        "_write_since_ns",
    )

    def __init__(self, grace: Grace, on_away: Callable[[], None]) -> None:
        """Sets the grace period, and what is called once when it is over."""
        self._grace: Final = grace
        self._on_away: Final = on_away
        self._write_since_ns: int | None = None
        self._acks_since_ns: int | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._reader_left = False

    @property
    def reader_left(self) -> bool:
        """Whether it has been away too long."""
        return self._reader_left

    def start(self) -> None:
        """Begins to look."""
        self._look_in(self._grace.grace_s)

    def close(self) -> None:
        """Looks no more. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()

    def begin_write(self) -> None:
        """Begins a wait for the transport; one that is cut off needs no end."""
        self._write_since_ns = self._grace.clock_ns()

    def end_write(self) -> None:
        """Ends the wait."""
        self._write_since_ns = None

    def await_acknowledgement(self) -> None:
        """Counts the time from now on, or since an earlier call, as a wait."""
        if self._acks_since_ns is None:
            self._acks_since_ns = self._grace.clock_ns()

    def note_acknowledgement(self) -> None:
        """Ends the wait for one."""
        self._acks_since_ns = None

    def _look_in(self, delay_s: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._look)

    def _look(self) -> None:
        now_ns = self._grace.clock_ns()
        waits = [since for since in (self._write_since_ns, self._acks_since_ns) if since]
        waited_s = (now_ns - min(waits, default=now_ns)) / NS_PER_S
        if waited_s >= self._grace.grace_s:
            self._reader_left = True
            self._on_away()
        else:
            self._look_in(self._grace.grace_s - waited_s)
