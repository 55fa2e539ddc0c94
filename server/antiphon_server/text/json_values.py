"""JSON that callers send as text: tools' schemas and calls' arguments."""

import json
import math
import re
from collections.abc import Callable, Sequence
from typing import Final, NoReturn

from antiphon_engine.api.errors import FieldViolation, InvalidRequest

JsonValue = str | int | float | bool | None | Sequence["JsonValue"] | dict[str, "JsonValue"]

_HALF_ESCAPE: Final = re.compile(r"\\u[dD][89a-fA-F]")
_HALF: Final = re.compile("[\ud800-\udfff]")
_MAX_DIGITS: Final = 4300
"""Of a whole number; Python reads no more."""


def parse_object(text: str, path: str) -> dict[str, JsonValue]:
    """Returns the object that a text is. Takes longer than an event loop can wait for large ones.

    Raises:
        InvalidRequest: it is no JSON object, or one that can't be passed on: it nests too deeply,
            has a number that can't be read, or half of a character.
    """
    try:
        value = json.loads(
            text, parse_int=_integer_of, parse_float=_float_of, parse_constant=_refuse_constant
        )
    except RecursionError:
        raise InvalidRequest(FieldViolation(path, "nests too deeply")) from None
    except ValueError as error:
        raise InvalidRequest(FieldViolation(path, f"is not valid JSON: {error}")) from error
    if not isinstance(value, dict):
        raise InvalidRequest(FieldViolation(path, "must be one JSON object"))
    if _HALF_ESCAPE.search(text) and any(map(_HALF.search, _texts_of(value))):
        # No token could stand for it, nor could the text be sent to anyone.
        description = "has half of a surrogate pair in a text or name, which is no character"
        raise InvalidRequest(FieldViolation(path, description))
    return value


def change_texts(value: JsonValue, change: Callable[[str], str]) -> JsonValue:
    """Returns a value in which all texts, names of members too, are changed."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {change(key): change_texts(part, change) for key, part in value.items()}
    if isinstance(value, Sequence):
        return [change_texts(part, change) for part in value]
    return value


def _texts_of(value: JsonValue) -> list[str]:
    texts: list[str] = []

    def collect(text: str) -> str:
        texts.append(text)
        return text

    change_texts(value, collect)
    return texts


def _integer_of(text: str) -> int:
    num_digits = len(text.lstrip("-"))
    if num_digits > _MAX_DIGITS:
        raise ValueError(f"a number has {num_digits} digits, and {_MAX_DIGITS} can be read")
    return int(text)


def _float_of(text: str) -> float:
    # What is beyond the largest number would be shown to the model as Infinity.
    if math.isinf(number := float(text)):
        raise ValueError("a number is too large to be read")
    return number


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is no JSON")
