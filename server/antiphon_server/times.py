"""Points and spans of time between messages and numbers."""

from typing import Final

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from antiphon_engine.api.errors import FieldViolation, InvalidRequest

NS_PER_S: Final = 1_000_000_000
_MAX_S: Final = 100 * 366 * 86400
"""A century: longer spans are mistakes, and sums with them could leave what a timestamp holds."""


def to_timestamp(ns: int) -> Timestamp:
    """Returns nanoseconds since 1970 as a message."""
    return Timestamp(seconds=ns // NS_PER_S, nanos=ns % NS_PER_S)


def to_ns(message: Timestamp | Duration) -> int:
    """Returns a message's time in nanoseconds."""
    return message.seconds * NS_PER_S + message.nanos


def to_s(message: Duration) -> float:
    """Returns a span of time in seconds."""
    return to_ns(message) / NS_PER_S


def to_duration(ns: int) -> Duration:
    """Returns a span of time, or zero for one that never was."""
    seconds, nanos = divmod(max(0, ns), NS_PER_S)
    return Duration(seconds=seconds, nanos=nanos)


def check_duration(message: Duration, path: str) -> int:
    """Returns a span of more than 0 and at most a century in nanoseconds. Raises InvalidRequest."""
    ns = to_ns(message)
    _check_nanos(message, path)
    if not 0 < ns <= _MAX_S * NS_PER_S:
        raise InvalidRequest(
            FieldViolation(path, f"must be more than 0 and at most {_MAX_S} s; is {ns / 1e9:g} s")
        )
    return ns


def check_future(message: Timestamp, now_ns: int, path: str) -> int:
    """Returns a point in the next century in nanoseconds since 1970. Raises InvalidRequest."""
    ns = to_ns(message)
    _check_nanos(message, path)
    if not now_ns < ns <= now_ns + _MAX_S * NS_PER_S:
        raise InvalidRequest(
            FieldViolation(
                path,
                f"must be in the future, by at most {_MAX_S} s; is"
                f" {(ns - now_ns) / 1e9:g} s from now",
            )
        )
    return ns


def _check_nanos(message: Timestamp | Duration, path: str) -> None:
    if not 0 <= message.nanos < NS_PER_S:
        raise InvalidRequest(
            FieldViolation(f"{path}.nanos", f"must be in [0, {NS_PER_S - 1}], is {message.nanos}")
        )
