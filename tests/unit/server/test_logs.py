import io
import json
import logging
import re

import grpc
import pytest
import structlog

from antiphon_server.config import LoggingConfig
from antiphon_server.logs import configure_logging

pytestmark = pytest.mark.usefixtures("logging_as_before")


def test_json_log_has_one_object_a_line_also_for_libraries() -> None:
    stream = io.StringIO()
    configure_logging(LoggingConfig(format="json"), stream)

    structlog.get_logger().info("started", port=5)
    logging.getLogger("some.library").warning("careful: %s", "hot")

    ours, theirs = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert (ours["event"], ours["port"], ours["level"]) == ("started", 5, "info")
    assert (theirs["event"], theirs["level"]) == ("careful: hot", "warning")
    assert "timestamp" in ours
    assert "timestamp" in theirs


def test_lines_below_the_level_are_left_out() -> None:
    stream = io.StringIO()
    configure_logging(LoggingConfig(level="warning"), stream)

    structlog.get_logger().info("quiet")
    structlog.get_logger().warning("loud")

    assert "quiet" not in stream.getvalue()
    assert "loud" in stream.getvalue()


def test_console_log_has_no_colours_where_nobody_sees_them() -> None:
    stream = io.StringIO()
    configure_logging(LoggingConfig(format="console"), stream)

    structlog.get_logger().info("started")

    assert "started" in stream.getvalue()
    assert "\x1b" not in stream.getvalue()


@pytest.mark.parametrize("format_", ["json", "console"])
def test_error_is_logged_with_its_traceback(format_: str) -> None:
    stream = io.StringIO()
    configure_logging(LoggingConfig(format=format_), stream)

    try:
        raise ValueError("odd")
    except ValueError as error:
        structlog.get_logger().error("failed", exc_info=error)

    assert "Traceback" in stream.getvalue()
    assert "ValueError: odd" in stream.getvalue()


def test_caller_that_went_away_is_no_error() -> None:
    stream = io.StringIO()
    configure_logging(LoggingConfig(), stream)

    try:
        raise grpc.aio.InternalError
    except grpc.aio.InternalError:
        logging.getLogger("transport").exception("raised in core")

    assert stream.getvalue() == ""


class Terminal(io.StringIO):
    """Text that a person sees."""

    def isatty(self) -> bool:
        return True


FIGURES = {
    "request_id": "r-1",
    "kind": "turn",
    "session": "sessions/a",
    "prompt_tokens": 340,
    "output_tokens": 12,
    "first_token_s": 0.123456,
    "duration_s": 1.5,
}


def told_at_a_terminal(**fields: object) -> str:
    stream = Terminal()
    configure_logging(LoggingConfig(), stream)
    structlog.get_logger().info("turn ended", **fields)
    return re.sub("\x1b\\[[0-9;]*m", "", stream.getvalue())


def test_a_terminal_shows_in_short_what_went_well() -> None:
    line = told_at_a_terminal(outcome="completed", **FIGURES)

    assert re.fullmatch(
        r"\d\d:\d\d:\d\d \[info     \] turn ended +session=sessions/a prompt_tokens=340"
        r" output_tokens=12 first_token_s=0.12 duration_s=1.5\n",
        line,
    )


@pytest.mark.parametrize("outcome", ["failed", "cancelled"])
def test_a_terminal_shows_all_of_what_did_not_go_well(outcome: str) -> None:
    line = told_at_a_terminal(outcome=outcome, reason="TIMEOUT", **FIGURES)

    assert all(f"{key}=" in line for key in ("outcome", "reason", *FIGURES))
    assert "first_token_s=0.123456" in line


def test_a_file_gets_all_of_what_went_well() -> None:
    stream = io.StringIO()
    configure_logging(LoggingConfig(), stream)

    structlog.get_logger().info("turn ended", outcome="completed", **FIGURES)

    assert all(f"{key}=" in stream.getvalue() for key in ("outcome", *FIGURES))
