"""A schema's text as values: strict JSON, numbers exact, nothing ambiguous."""

import json
import re
from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from typing import Final, NoReturn, TypeAlias

from antiphon_server.constraints.json_schema.limits import PlanLimits
from antiphon_server.constraints.refusals import (
    ConstraintTooComplexError,
    UnsupportedConstraintError,
    shown,
)

Json: TypeAlias = "bool | int | Decimal | str | list[Json] | dict[str, Json] | None"

_STRING: Final = re.compile(r'"(?:[^"\\]|\\.)*+"', re.DOTALL)
_BRACKET: Final = re.compile(r"[\[\]{}]")
_HALF: Final = re.compile("[\ud800-\udfff]")
MAX_EXPONENT: Final = 400
"""Decimal places a number of a schema may have on either side; a double has fewer."""
_NO_HALVES: Final = "a text or name here has half of a surrogate pair, which no output can have"


def parse_document(text: str, limits: PlanLimits, *, noun: str = "the schema") -> Json:
    """Returns the text's value; refusals call it by the noun.

    Raises:
        UnsupportedConstraintError: the text isn't JSON, or has a name twice in one object.
        ConstraintTooComplexError: it nests too deeply.
    """
    _check_depth(text, limits, noun)
    try:
        document: Json = json.loads(
            text,
            object_pairs_hook=_object_of,
            parse_float=_decimal_of,
            parse_int=_integer_of,
            parse_constant=_refuse_constant,
        )
    except json.JSONDecodeError as error:
        raise UnsupportedConstraintError(
            f"line {error.lineno}, column {error.colno}", f"{noun} isn't JSON: {error.msg}"
        ) from None
    return document


def refuse_halves(value: Json, pointer: str = "") -> None:
    """Refuses half of a surrogate pair in any text or name: no output can have it.

    Raises:
        UnsupportedConstraintError: names where the text is, or the object that has the name.
    """
    match value:
        case str():
            if _HALF.search(value):
                raise UnsupportedConstraintError(pointer, _NO_HALVES)
        case list():
            for index, item in enumerate(value):
                refuse_halves(item, f"{pointer}/{index}")
        case dict():
            for name, item in value.items():
                refuse_halves(name, pointer)
                refuse_halves(item, f"{pointer}/{escape_pointer(name)}")


def escape_pointer(name: str) -> str:
    """Returns a name as a part of a JSON pointer."""
    return name.replace("~", "~0").replace("/", "~1")


def json_key(value: Json) -> str:
    """Returns a text that two values share exactly if JSON Schema calls them equal."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, int | Decimal):
        return plain_number(Decimal(value))
    if isinstance(value, str):
        return json.dumps(value)
    if isinstance(value, list):
        return "[" + ",".join(json_key(item) for item in value) + "]"
    members = sorted((name, json_key(item)) for name, item in value.items())
    return "{" + ",".join(f"{json.dumps(name)}:{item}" for name, item in members) + "}"


def plain_number(value: Decimal) -> str:
    """Returns a number without exponent and without needless zeros."""
    text = format(value, "f")
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def _check_depth(text: str, limits: PlanLimits, noun: str) -> None:
    """Bounds the nesting before the parser recurses into it."""
    depth = deepest = 0
    for bracket in _BRACKET.findall(_STRING.sub("", text)):
        depth += 1 if bracket in "[{" else -1
        deepest = max(deepest, depth)
    if deepest > limits.max_depth:
        raise ConstraintTooComplexError(
            f"{noun} nests {deepest} levels deep, and {limits.max_depth} are allowed; "
            "make it flatter, or move parts of schemas to $defs and refer to them",
            limit=str(limits.max_depth),
        )


def _object_of(pairs: Sequence[tuple[str, Json]]) -> dict[str, Json]:
    members = dict(pairs)
    if len(members) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise UnsupportedConstraintError("", f"the name {shown(twice)} is twice in one object")
    return members


def _decimal_of(text: str) -> Decimal:
    try:
        value = Decimal(text)
    except InvalidOperation:
        _refuse_number(text)
    if not value.is_finite() or abs(value.adjusted()) > MAX_EXPONENT or len(text) > MAX_EXPONENT:
        _refuse_number(text)
    return value


def _integer_of(text: str) -> int:
    if len(text) > MAX_EXPONENT:
        _refuse_number(text)
    return int(text)


def _refuse_number(text: str) -> NoReturn:
    raise UnsupportedConstraintError(
        "", f"the number {text[:40]} has more than {MAX_EXPONENT} decimal places"
    )


def _refuse_constant(text: str) -> NoReturn:
    raise UnsupportedConstraintError("", f"{text} isn't JSON")
