"""Whether values satisfy a schema, as JSON Schema 2020-12 says, with exact numbers."""

import json
import re
from collections.abc import Iterator
from decimal import Decimal
from fractions import Fraction
from functools import cache

from jsonschema import Draft202012Validator, ValidationError
from jsonschema.validators import extend

from support.json_spellings import Json

_IN_PLACE = ("allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas", "$ref")

_BLANKS = r"\t\n\v\f\r \u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff"
_OUTSIDE_OF_CLASSES = {
    "$": r"\Z",  # Python's also matches before a line's end.
    ".": r"[^\n\r\u2028\u2029]",
    r"\S": f"[^{_BLANKS}]",
    r"\B": r"(?!\b)",  # Python has an opinion of its own on a text of nothing.
}


class Undecidable(Exception):  # noqa: N818 - an answer
    """What the schema says of a value depends on what it says of that same value."""


class SchemaOracle:
    """Decides about the values of one schema, whose references are to its `$defs`."""

    def __init__(self, schema: Json) -> None:
        """Raises Undecidable."""
        _check_loops(schema, schema, ())
        self._validator = _Validator(schema)

    def accepts(self, value: Json) -> bool:
        """Returns whether a value is valid."""
        return bool(self._validator.is_valid(value))

    def accepts_text(self, text: str) -> bool:
        """Returns whether a text's value is valid; of names given twice the last counts."""
        return self.accepts(json.loads(text, parse_float=Decimal))


def is_schema(value: Json) -> bool:
    """Returns whether a value is a schema at all."""
    return bool(_Validator(Draft202012Validator.META_SCHEMA).is_valid(value))


def _check_loops(schema: Json, root: Json, entered: tuple[str, ...]) -> None:
    if not isinstance(schema, dict):
        return
    for definition in schema.get("$defs", {}).values():
        _check_loops(definition, root, ())
    for keyword, inner in schema.items():
        if keyword == "$ref" and isinstance(inner, str) and isinstance(root, dict):
            name = inner.rpartition("/")[2]
            if name in entered or name not in root.get("$defs", {}):
                raise Undecidable(f"{inner} refers to itself, or nowhere")
            _check_loops(root["$defs"][name], root, (*entered, name))
        elif keyword in _IN_PLACE:
            nested = keyword == "dependentSchemas" and isinstance(inner, dict)
            for each in inner.values() if nested else inner if isinstance(inner, list) else [inner]:
                _check_loops(each, root, entered)


def _is_integer(_: object, value: object) -> bool:
    if isinstance(value, Decimal):
        return value == value.to_integral_value()
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(_: object, value: object) -> bool:
    return isinstance(value, int | Decimal) and not isinstance(value, bool)


@cache
def as_in_ecma_262(pattern: str) -> re.Pattern[str]:
    """Returns a pattern of ECMA-262 as one of Python, where they take the same text otherwise."""
    parts, in_class = [], False
    for part in re.findall(r"\\.|[^\\]", pattern, re.DOTALL):
        if part == r"\s":
            parts.append(_BLANKS if in_class else f"[{_BLANKS}]")
        else:
            parts.append(part if in_class else _OUTSIDE_OF_CLASSES.get(part, part))
        in_class = part != "]" if in_class else part == "["
    # The letters, digits and borders of words are ASCII's.
    return re.compile("".join(parts), re.ASCII)


def _pattern(
    validator: object, pattern: str, value: object, schema: object
) -> Iterator[ValidationError]:
    if isinstance(value, str) and not as_in_ecma_262(pattern).search(value):
        yield ValidationError(f"{value!r} does not match {pattern!r}")


def _pattern_properties(
    validator: object, patterns: dict[str, Json], value: object, schema: object
) -> Iterator[ValidationError]:
    if isinstance(value, dict):
        for pattern, subschema in patterns.items():
            for name, member in value.items():
                if as_in_ecma_262(pattern).search(name):
                    yield from validator.descend(member, subschema)


def _multiple_of(
    validator: object, divisor: Decimal | int, value: object, schema: object
) -> Iterator[ValidationError]:
    # Decimals that are far apart can't be divided within a fixed precision.
    if _is_number(validator, value) and (Fraction(value) / Fraction(divisor)).denominator != 1:
        yield ValidationError(f"{value} is not a multiple of {divisor}")


def _dependencies(
    validator: object, dependencies: dict[str, Json], value: object, schema: object
) -> Iterator[ValidationError]:
    """Of older drafts: what must hold where a member is there, as names or as a schema."""
    for name, needed in dependencies.items():
        if not isinstance(value, dict) or name not in value:
            continue
        if not isinstance(needed, list):
            yield from validator.descend(value, needed)
        elif not value.keys() >= set(needed):
            yield ValidationError(f"{name!r} needs {needed!r}")


_Validator = extend(
    Draft202012Validator,
    validators={
        "dependencies": _dependencies,
        "multipleOf": _multiple_of,
        "pattern": _pattern,
        "patternProperties": _pattern_properties,
    },
    type_checker=Draft202012Validator.TYPE_CHECKER.redefine_many(
        {"integer": _is_integer, "number": _is_number}
    ),
)
