"""What telemetry counts of itself."""

from dataclasses import dataclass


@dataclass(slots=True)
class TelemetryFigures:
    """Counts since the start. Each is written by one thread and may be read by any."""

    num_spans_exported: int = 0
    """Those that the collector took."""
    num_spans_without_room: int = 0
    """Those that could not wait for it, at least."""
    num_spans_not_taken: int = 0
    """Those that it refused, or did not answer for in time."""
    num_failed_exports: int = 0
    """Attempts that it refused, or did not answer in time."""
    num_failed_metric_exports: int = 0
    """The same for metrics."""
    num_log_lines_without_room: int = 0
    """Lines of the log that could not wait for whoever reads it."""
    num_log_lines_repeated: int = 0
    """Lines that said again what was said often just before."""

    @property
    def num_spans_dropped(self) -> int:
        """All that were lost."""
        return self.num_spans_without_room + self.num_spans_not_taken
