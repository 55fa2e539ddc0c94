"""What exporters log of a collector in trouble: a line a minute."""

import logging

from antiphon_server.telemetry.exporter_log import INTERVAL_S, LineAMinute, limit_exporter_logs


class Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def test_one_line_a_minute_goes_out_over_all_loggers_and_tells_of_the_others():
    now_s, kept = 0.0, Kept()
    names = ("test.exporter.one", "test.exporter.two")
    limit_exporter_logs(LineAMinute(clock=lambda: now_s), names)
    for name in names:
        logging.getLogger(name).addHandler(kept)

    for second in range(int(INTERVAL_S) + 1):
        now_s = float(second)
        for name in names:
            logging.getLogger(name).warning("lost %d", second)

    assert kept.lines == ["lost 0", f"lost 60 ({2 * 60 - 1} more such lines were left out)"]


def test_limiting_again_leaves_one_filter():
    limit_exporter_logs(LineAMinute(), ("test.exporter.three",))
    limit_exporter_logs(LineAMinute(), ("test.exporter.three",))

    assert len(logging.getLogger("test.exporter.three").filters) == 1
