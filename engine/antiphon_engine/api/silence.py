"""How long an engine has given no sign of life, as far as its front end could have heard one."""

import asyncio
import time
from collections.abc import Callable
from typing import Final

from antiphon_engine.api.connection import Connection
from antiphon_engine.api.messages import ToFrontEnd

_IDLE_SHARE: Final = 0.05
"""Of the time, that a process which hangs without working may be on a processor at most."""
_CPU_CLOCK: Final = 2


def cpu_clock_of(process_id: int) -> Callable[[], float]:
    """Returns what tells the processor time that a process has had; of one that is gone, 0."""

    def read_s() -> float:
        try:
            # As clock_getcpuclockid(3) makes the clock of a process.
            return time.clock_gettime(~process_id << 3 | _CPU_CLOCK)
        except OSError:
            return 0.0

    return read_s


class Silence:
    """Measures in ticks, so that time in which this process itself stood still doesn't count.

    After such a time what the engine sent is still unread, and its timers are due before that. Nor
    does the time count in which an engine that works waits for a processor: on a machine that has
    much else to do a step may take minutes, and is no stall.
    """

    def __init__(
        self,
        connection: Connection[ToFrontEnd],
        *,
        tick_s: float,
        engine_cpu_s: Callable[[], float],
    ) -> None:
        self._connection = connection
        self._tick_s = tick_s
        self._engine_cpu_s = engine_cpu_s
        self._cpu_s = engine_cpu_s()
        self._heard_s = connection.last_heard_s
        self.length_s = 0.0
        """At the end of the last tick."""

    async def tick(self, *awaited: asyncio.Future[str]) -> None:
        """Waits for a tick; not to its end where one of `awaited` is done or the link is lost."""
        loop = asyncio.get_running_loop()
        start_s = loop.time()
        await asyncio.wait(
            {self._connection.lost, *awaited},
            timeout=self._tick_s,
            return_when=asyncio.FIRST_COMPLETED,
        )
        elapsed_s = min(loop.time() - start_s, self._tick_s)
        before_s, self._cpu_s = self._cpu_s, self._engine_cpu_s()
        if self._connection.last_heard_s != self._heard_s:
            self._heard_s = self._connection.last_heard_s
            self.length_s = 0.0
        else:
            self.length_s += _counted_s(elapsed_s, self._cpu_s - before_s)


def _counted_s(elapsed_s: float, worked_s: float) -> float:
    return min(elapsed_s, worked_s) if worked_s > _IDLE_SHARE * elapsed_s else elapsed_s
