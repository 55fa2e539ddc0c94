"""How late the event loop is."""

import asyncio
from typing import Final

from antiphon_server.telemetry import metric_names as metrics
from antiphon_server.telemetry.metric_values import Family, Histogram

INTERVAL_S: Final = 0.5


class LoopLag:
    """Looks at times how late what was due is run. Used on one event loop."""

    def __init__(self) -> None:
        self._lag = Histogram(metrics.LOOP_LAG, [()])
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begins to look. Idempotent."""
        if self._timer is None:
            self._wait()

    def stop(self) -> None:
        """Ends it. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def family(self) -> Family:
        """Returns what was seen. Any thread."""
        return self._lag.family()

    def _wait(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(INTERVAL_S, self._look, loop.time() + INTERVAL_S)

    def _look(self, due_s: float) -> None:
        late_s = asyncio.get_running_loop().time() - due_s
        self._lag.observe(value=max(0.0, late_s))
        self._wait()
