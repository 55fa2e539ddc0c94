"""What a template's operations cost, told before they are carried out."""

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import wraps

_NODE_CHARS = 8
_MAX_NODES = 1 << 18
_MAX_INT_BITS = 1 << 17
_WIDE_FIELD = re.compile(r"\d{5,}|\*")
"""A width in a format that no template needs; the star takes it from the arguments."""
_PADDING_METHODS = frozenset({"ljust", "rjust", "center", "zfill", "to_bytes", "expandtabs"})


class TemplateBudgetError(Exception):
    """A rendering takes more than its limits allow."""


class Spent:
    """What a rendering has taken so far."""

    def __init__(
        self, *, limit: int, deadline: float, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._left = limit
        self._deadline = deadline
        self._monotonic = monotonic

    def add(self, num_chars: int) -> None:
        """Counts characters that are about to be made.

        Raises:
            TemplateBudgetError: They are too many, or the time is up.
        """
        self._left -= num_chars
        if self._left < 0:
            raise TemplateBudgetError("the chat template makes too much text for this conversation")
        if self._monotonic() > self._deadline:
            raise TemplateBudgetError("the chat template takes too long for this conversation")


def weigh(value: object) -> int:
    """The characters that the value takes when written out, roughly.

    Raises:
        TemplateBudgetError: It is larger than anything that a template needs.
    """
    if isinstance(value, str | bytes):
        return len(value)
    if isinstance(value, int):
        return value.bit_length() // 3 + 1
    if not isinstance(value, list | tuple | dict | set | frozenset):
        return _NODE_CHARS
    weight = num_nodes = 0
    waiting: list[object] = [value]
    while waiting:
        node = waiting.pop()
        if isinstance(node, str | bytes):
            weight += len(node)
        elif isinstance(node, dict):
            waiting.extend(node)
            waiting.extend(node.values())
        elif isinstance(node, list | tuple | set | frozenset):
            waiting.extend(node)
        weight += _NODE_CHARS
        num_nodes += 1
        # Lists that hold the same list twice, nested, are small to make and endless to write out.
        if num_nodes + len(waiting) > _MAX_NODES:
            raise TemplateBudgetError("the chat template makes too large a value")
    return weight


def weigh_operation(operator: str, left: object, right: object) -> int:
    """What an operator's result takes.

    Raises:
        TemplateBudgetError: It is larger than anything that a template needs.
    """
    if operator == "+" and isinstance(left, str | list | tuple):
        return _length(left) + _length(right)
    if operator == "%" and isinstance(left, str | bytes):
        return len(left) + weigh(right) + _format_widths(left, ())
    if operator == "*":
        for repeated, count in ((left, right), (right, left)):
            if isinstance(repeated, str | bytes | list | tuple) and isinstance(count, int):
                return len(repeated) * max(0, count) * _item_chars(repeated)
        if isinstance(left, int) and isinstance(right, int):
            return _checked_bits(left.bit_length() + right.bit_length())
    if operator == "**" and isinstance(left, int) and isinstance(right, int):
        return _checked_bits(left.bit_length() * max(0, right))
    return 0


def weigh_call(function: object, args: Sequence[object], kwargs: Mapping[str, object]) -> int:
    """What the result of calling a method of a string, of bytes or of a number takes.

    Raises:
        TemplateBudgetError: It is larger than anything that a template needs.
    """
    # The sandbox wraps the methods that format.
    target = getattr(getattr(function, "__wrapped__", function), "__self__", None)
    name = getattr(function, "__name__", "")
    if not isinstance(target, str | bytes | int):
        return 0
    values = (*args, *kwargs.values())
    weight = _length(target)
    if name in _PADDING_METHODS:
        tabs = weight if name == "expandtabs" else 1
        weight += tabs * sum(abs(value) for value in values if isinstance(value, int))
    elif name == "replace" and len(args) >= 2:
        weight += _replaced(target, args[0], args[1])
    elif name == "join":
        weight = _joined(target, values[0] if values else ())
    elif name in ("format", "format_map"):
        weight += sum(map(weigh, values)) + _format_widths(target, values)
    return weight


def guarded_filters(
    filters: Mapping[str, Callable[..., object]], spend: Callable[[int], None]
) -> dict[str, Callable[..., object]]:
    """The filters whose results can be much larger than their arguments, made to count them."""
    weights: dict[str, Callable[[tuple[object, ...]], int]] = {
        "center": lambda values: _length(values[0]) + _ints(values[1:] or (80,)),
        "indent": _indented,
        "replace": lambda values: _replaced(values[0], *values[1:3]) if len(values) > 2 else 0,
        "format": lambda values: sum(map(weigh, values)) + _format_widths(values[0], values[1:]),
        "join": lambda values: _joined(values[1] if len(values) > 1 else "", values[0]),
        "tojson": _indented_json,
        "string": lambda values: weigh(values[0]),
        "pprint": lambda values: weigh(values[0]) * 4,
        "batch": lambda values: _ints(values[1:2]) * _NODE_CHARS,
        "slice": lambda values: _ints(values[1:2]) * _NODE_CHARS,
        "list": lambda values: _length(values[0]) * _NODE_CHARS,
        "wordwrap": lambda values: _length(values[0]),
    }
    return {name: _guarded(filters[name], weight, spend) for name, weight in weights.items()}


def _guarded(
    function: Callable[..., object],
    weight: Callable[[tuple[object, ...]], int],
    spend: Callable[[int], None],
) -> Callable[..., object]:
    """Wraps a filter. The first argument may be the environment or context; it weighs nothing."""
    takes_environment = hasattr(function, "jinja_pass_arg")

    @wraps(function)
    def guarded(*args: object, **kwargs: object) -> object:
        values = (*args[takes_environment:], *kwargs.values())
        if values and isinstance(values[0], Iterator):
            # What comes one by one is taken at once, so that it can be weighed.
            values = (list(values[0]), *values[1:])
            num_own = len(args) - takes_environment
            args = (*args[:takes_environment], *values[:num_own])
        spend(weight(values))
        return function(*args, **kwargs)

    return guarded


def _length(value: object) -> int:
    return len(value) if isinstance(value, str | bytes | list | tuple | dict) else _NODE_CHARS


def _item_chars(value: object) -> int:
    return 1 if isinstance(value, str | bytes) else _NODE_CHARS


def _ints(values: Sequence[object]) -> int:
    return sum(abs(value) for value in values if isinstance(value, int))


def _checked_bits(num_bits: int) -> int:
    if num_bits > _MAX_INT_BITS:
        raise TemplateBudgetError("the chat template makes too large a number")
    return num_bits // 3


def _replaced(text: object, old: object, new: object) -> int:
    if not isinstance(text, str) or not isinstance(old, str) or not isinstance(new, str):
        return _length(text)
    return len(text) + text.count(old) * len(new)


def _joined(separator: object, values: object) -> int:
    if not isinstance(values, list | tuple | dict | str):
        return _NODE_CHARS
    return _length(separator) * len(values) + weigh(values)


def _format_widths(text: object, values: Sequence[object]) -> int:
    shown = text.decode("latin-1") if isinstance(text, bytes) else str(text)
    if _WIDE_FIELD.search(shown):
        raise TemplateBudgetError("the chat template formats with too great a width")
    return _ints(values)


def _indented(values: tuple[object, ...]) -> int:
    text = values[0]
    num_lines = text.count("\n") + 1 if isinstance(text, str) else 1
    return _length(text) + num_lines * sum(
        value if isinstance(value, int) else _length(value) for value in values[1:] or (4,)
    )


def _indented_json(values: tuple[object, ...]) -> int:
    weight = weigh(values[0])
    widths = [value for value in values[1:] if type(value) is int or isinstance(value, str)]
    return weight * (1 + sum(v if isinstance(v, int) else len(v) for v in widths))
