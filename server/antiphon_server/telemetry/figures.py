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

    def count_log_line_without_room(self) -> None:
        """Counts one. Under the log's lock, on any thread."""
        self.num_log_lines_without_room += 1

    def count_log_line_repeated(self) -> None:
        """Counts one; where two threads do at once, one may be missed."""
        self.num_log_lines_repeated += 1

    @property
    def num_spans_dropped(self) -> int:
        """All that were lost."""
        return self.num_spans_without_room + self.num_spans_not_taken
