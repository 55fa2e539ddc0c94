"""How figures are written for a person: few digits, with their units."""

from google.protobuf.duration_pb2 import Duration


def seconds(duration: Duration) -> float:
    """Returns a span of time in seconds."""
    return duration.seconds + duration.nanos / 1e9


def span(seconds: float) -> str:
    """Returns a span of time with three digits: 0.61 ms, 12.3 ms, 1.47 s, 2 min 03 s."""
    if seconds >= 60:
        minutes, rest = divmod(round(seconds), 60)
        return f"{minutes} min {rest:02} s"
    value, unit = (seconds, "s") if seconds >= 0.9995 else (seconds * 1e3, "ms")
    return f"{value:.{_num_decimals(value)}f} {unit}"


def count(number: float) -> str:
    """Returns a number with its thousands parted."""
    return f"{round(number):,}"


def rate(number: float) -> str:
    """Returns a number a second, with a decimal where it is small."""
    return f"{number:,.1f}" if number < 99.95 else count(number)


def share(part: float, whole: float) -> str:
    """Returns a part of a whole in per cent; of nothing, a dash."""
    if not whole:
        return "-"
    per_cent = round(100 * part / whole)
    return "<1 %" if part and not per_cent else f"{per_cent} %"


def counted(number: int, noun: str) -> str:
    """Returns a number of things: 1 step, 2 steps."""
    return f"{count(number)} {noun}{'' if number == 1 else 's'}"


def _num_decimals(value: float) -> int:
    if value >= 99.95:
        return 0
    return 1 if value >= 9.995 else 2
