"""Keeps what exporters log of a collector in trouble to a line a minute."""

import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import Final

INTERVAL_S: Final = 60.0
EXPORTER_LOGGERS: Final = (
    "opentelemetry.exporter.otlp.proto.grpc.exporter",
    "opentelemetry.exporter.otlp.proto.grpc.trace_exporter",
    "opentelemetry.exporter.otlp.proto.grpc.metric_exporter",
    "opentelemetry.sdk.metrics._internal.export",
    "antiphon_server.telemetry.otlp_metrics",
    "antiphon_server.telemetry.span_export",
)


class LineAMinute(logging.Filter):
    """Lets one line through, and the next one after a minute, which tells how many it stands for.

    One for all loggers of exporters: to be told once is enough. Any thread.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Sets the clock, monotonic and in seconds."""
        super().__init__()
        self._clock = clock
        self._lock = threading.Lock()
        self._next_s = float("-inf")
        self._num_left_out = 0

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a line goes out."""
        with self._lock:
            now_s = self._clock()
            if now_s < self._next_s:
                self._num_left_out += 1
                return False
            self._next_s = now_s + INTERVAL_S
            num, self._num_left_out = self._num_left_out, 0
        if num:
            record.msg = f"{record.getMessage()} ({num} more such lines were left out)"
            record.args = ()
        return True


def limit_exporter_logs(new_filter: LineAMinute, names: Iterable[str] = EXPORTER_LOGGERS) -> None:
    """Puts one filter on all loggers of exporters, in place of an earlier one."""
    for name in names:
        logger = logging.getLogger(name)
        for old in [old for old in logger.filters if isinstance(old, LineAMinute)]:
            logger.removeFilter(old)
        logger.addFilter(new_filter)
