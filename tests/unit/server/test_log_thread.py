"""A log that a thread writes, and one that does not say the same all over again."""

import io
import json
import logging
import os
import threading

import pytest
import structlog

from antiphon_server.config import LoggingConfig
from antiphon_server.log_repeats import MAX_KINDS, WINDOW_S, RepeatLimit
from antiphon_server.log_thread import LogThread, RawStream
from antiphon_server.logs import configure_logging
from antiphon_server.telemetry.figures import TelemetryFigures


class Gate(logging.Handler):
    """Writes nothing before it is opened."""

    def __init__(self) -> None:
        super().__init__()
        self.entered = threading.Event()
        self.opened = threading.Event()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.entered.set()
        self.opened.wait(30)
        self.lines.append(record.getMessage())


def line(text: object, level: int = logging.INFO, *args: object) -> logging.LogRecord:
    return logging.LogRecord("a", level, "", 0, text, args, None)


def test_a_reader_that_is_stuck_costs_lines_which_are_counted_and_told():
    gate, dropped = Gate(), []
    thread = LogThread(gate, on_drop=lambda: dropped.append(1), max_waiting_lines=4)
    thread.handle(line("first"))
    assert gate.entered.wait(30)

    for number in range(7):
        thread.handle(line("line %d", logging.INFO, number))
    gate.opened.set()
    thread.close()

    assert len(dropped) == 3
    assert [text for text in gate.lines if text.startswith("line")] == [
        f"line {number}" for number in range(4)
    ]
    assert "3 lines were left out: whoever reads this log was too slow" in gate.lines


def test_what_a_line_is_about_may_change_behind_it():
    gate = Gate()
    thread = LogThread(gate)
    about = ["before"]

    thread.handle(line("about %s", logging.INFO, about))
    about.append("behind")
    gate.opened.set()
    thread.close()

    assert gate.lines == ["about ['before']"]


@pytest.mark.usefixtures("logging_as_before")
def test_lines_of_libraries_keep_what_their_call_was():
    stream = io.StringIO()
    log = configure_logging(LoggingConfig(format="json"), stream, on_thread=True)

    with structlog.contextvars.bound_contextvars(request_id="r1"):
        logging.getLogger("library").warning("careful")
    log.close()

    assert json.loads(stream.getvalue())["request_id"] == "r1"


def test_a_raw_stream_writes_all_and_leaves_the_descriptor_open():
    reading, writing = os.pipe()
    stream = RawStream(writing)

    assert stream.write("ü\ud800\n") == 3
    stream.flush()
    os.close(writing)

    assert os.read(reading, 100) == "ü\\ud800\n".encode()
    assert not stream.isatty()
    os.close(reading)


@pytest.mark.usefixtures("logging_as_before")
def test_the_same_failure_is_told_so_often_a_minute_and_then_counted():
    stream, figures = io.StringIO(), TelemetryFigures()
    log = configure_logging(
        LoggingConfig(format="json", max_repeats_per_minute=2), stream, figures=figures
    )

    for _ in range(5):
        structlog.get_logger().info("call refused", reason="OVERLOADED")
    structlog.get_logger().info("call refused", reason="TIMEOUT")
    for number in range(5):
        logging.getLogger("library").warning("lost %d", number)
        structlog.get_logger().info("request ended", outcome="completed")
    log.close()

    lines = [json.loads(text) for text in stream.getvalue().splitlines()]
    events = [(each["event"], each.get("reason", "")) for each in lines]
    assert events.count(("call refused", "OVERLOADED")) == 2
    assert events.count(("call refused", "TIMEOUT")) == 1
    assert events.count(("request ended", "")) == 5
    assert sum(event.startswith("lost") for event, _ in events) == 2
    left_out = [each for each in lines if each["event"] == "repeated lines left out"]
    assert [(each["of"], each["of_reason"], each["num"]) for each in left_out] == [
        ("call refused", "OVERLOADED", 3),
        ("lost %d", "", 3),
    ]
    assert figures.num_log_lines_repeated == 6


@pytest.mark.usefixtures("logging_as_before")
def test_a_new_minute_begins_by_telling_what_the_last_one_left_out():
    now_s, stream = 0.0, io.StringIO()
    configure_logging(LoggingConfig(format="json"), stream)
    limit = RepeatLimit(1, clock=lambda: now_s)
    passed = [limit.filter(line("hot", logging.WARNING)) for _ in range(3)]

    now_s = WINDOW_S
    assert limit.filter(line("anything"))
    passed.append(limit.filter(line("hot", logging.WARNING)))

    assert passed == [True, False, False, True]
    (told,) = [json.loads(text) for text in stream.getvalue().splitlines()]
    assert (told["event"], told["of"], told["num"]) == ("repeated lines left out", "hot", 2)


def test_callers_that_wait_for_the_engine_are_told_of_once_a_minute():
    now_s = 0.0
    limit = RepeatLimit(60, clock=lambda: now_s)
    waits = {"event": "call refused", "reason": "ENGINE_DOWN"}
    lost = {"event": "turn ended", "reason": "ENGINE_DOWN"}
    passed = [limit.filter(line(waits)) for _ in range(3)]
    passed_lost = [limit.filter(line(lost, logging.WARNING)) for _ in range(3)]

    now_s = WINDOW_S
    passed.append(limit.filter(line(waits)))

    assert passed == [True, False, False, True]
    assert passed_lost == [True, True, True]


def test_kinds_of_lines_are_bounded():
    limit = RepeatLimit(1, clock=lambda: 0.0)
    passed = sum(
        limit.filter(line(f"kind {number}", logging.WARNING)) for number in range(3 * MAX_KINDS)
    )

    assert passed == MAX_KINDS + 1
