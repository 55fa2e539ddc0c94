"""All metrics together, for whoever wants them, on whichever thread that is."""

import asyncio
import concurrent.futures
import time
from collections.abc import Callable, Sequence
from typing import Final

from antiphon_server.telemetry import metric_names as metrics
from antiphon_server.telemetry.figures import TelemetryFigures
from antiphon_server.telemetry.gauges import ENGINE_LIMIT_S, Gauges
from antiphon_server.telemetry.loop_lag import LoopLag
from antiphon_server.telemetry.metric_values import Family, Point
from antiphon_server.telemetry.request_metrics import RequestMetrics

FRESH_S: Final = 0.25
"""Gauges are not looked at more often than this, however many ask."""
_LOOP_LIMIT_S: Final = ENGINE_LIMIT_S + 1.0
"""How long the event loop may take to tell; beyond it gauges are told as they were before."""


class ServerMetrics:
    """What is counted and what is looked at. `families` is for threads beside the event loop."""

    def __init__(
        self,
        requests: RequestMetrics,
        gauges: Gauges,
        *,
        figures: TelemetryFigures,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Sets its parts.

        Args:
            requests: What is counted of requests and calls.
            gauges: What is looked at.
            figures: What telemetry counts of itself.
            clock: Monotonic, in seconds.
        """
        self.requests: Final = requests
        self.gauges: Final = gauges
        self._figures = figures
        self._clock = clock
        self._lag = LoopLag()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._looked: Sequence[Family] = ()
        self._looked_s = float("-inf")

    async def look(self) -> None:
        """Looks once more at what is looked at. Called on the event loop."""
        self._looked = await self.gauges.families()
        self._looked_s = self._clock()

    def start(self) -> None:
        """Begins. Called on the event loop."""
        self._loop = asyncio.get_running_loop()
        self._lag.start()

    def stop(self) -> None:
        """Looks at nothing any more; what was seen stays. Called on the event loop."""
        self._loop = None
        self._lag.stop()

    def families(self) -> Sequence[Family]:
        """Returns all. Waits for the event loop, for 2 s at most; never called on it."""
        self._look_from_beside()
        return [
            *self.requests.families(),
            self._lag.family(),
            *self._looked,
            *_of_telemetry(self._figures),
        ]

    def _look_from_beside(self) -> None:
        loop, now_s = self._loop, self._clock()
        if loop is None or now_s - self._looked_s < FRESH_S:
            return
        asked = self.look()
        try:
            looking = asyncio.run_coroutine_threadsafe(asked, loop)
        except RuntimeError:  # The loop has just been closed.
            asked.close()
            return
        try:
            looking.result(_LOOP_LIMIT_S)
        except concurrent.futures.TimeoutError:
            looking.cancel()
        except concurrent.futures.CancelledError:
            pass  # The server ends.


def _of_telemetry(figures: TelemetryFigures) -> Sequence[Family]:
    dropped = [
        Point(("no_room",), figures.num_spans_without_room),
        Point(("not_taken",), figures.num_spans_not_taken),
    ]
    failed = [
        Point(("traces",), figures.num_failed_exports),
        Point(("metrics",), figures.num_failed_metric_exports),
    ]
    lines = [
        Point(("no_room",), figures.num_log_lines_without_room),
        Point(("repeated",), figures.num_log_lines_repeated),
    ]
    return [
        Family(metrics.SPANS_EXPORTED, [Point((), figures.num_spans_exported)]),
        Family(metrics.SPANS_DROPPED, dropped),
        Family(metrics.FAILED_EXPORTS, failed),
        Family(metrics.LOG_LINES_DROPPED, lines),
    ]
