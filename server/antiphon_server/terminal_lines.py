"""The log as a person at a terminal reads it: what went well takes one short line."""

import datetime
from typing import Final

from structlog.typing import EventDict, WrappedLogger

from antiphon_server.telemetry.request_log import REQUEST_ENDED, TURN_ENDED
from antiphon_server.telemetry.request_record import Outcome

_HEAD: Final = ("timestamp", "level", "event")
_SHOWN: Final = (
    "session",
    "prompt_tokens",
    "cached_prompt_tokens",
    "output_tokens",
    "tool_calls",
    "constraint",
    "first_token_s",
    "duration_s",
)
"""Of a request that was completed, in this order; what does not hold is in no line."""
_SECOND_DIGITS: Final = 2


def shorten(_logger: WrappedLogger, _method: str, line: EventDict) -> EventDict:
    """Returns a line with the time of day, and of a request that was completed what people ask for.

    A processor of structlog's. Whatever failed or was cancelled keeps all its fields.
    """
    line["timestamp"] = _time_of_day(line["timestamp"])
    if line["event"] not in (REQUEST_ENDED, TURN_ENDED):
        return line
    if line["outcome"] != Outcome.COMPLETED.value:
        return line
    return {key: _short(line[key]) for key in (*_HEAD, *_SHOWN) if key in line}


def _time_of_day(timestamp: str) -> str:
    """Returns it where this machine is, of a time in ISO 8601."""
    return datetime.datetime.fromisoformat(timestamp).astimezone().strftime("%H:%M:%S")


def _short(value: object) -> object:
    return round(value, _SECOND_DIGITS) if isinstance(value, float) else value
