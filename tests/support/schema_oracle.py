"""Whether values satisfy a schema, as JSON Schema 2020-12 says, with exact numbers."""

import json
import re
from collections.abc import Iterator
from decimal import Decimal

from jsonschema import Draft202012Validator, ValidationError
from jsonschema.validators import extend

from support.json_spellings import Json


class SchemaOracle:
    """Decides about the values of one schema."""

    def __init__(self, schema: Json) -> None:
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


def _is_integer(_: object, value: object) -> bool:
    if isinstance(value, Decimal):
        return value == value.to_integral_value()
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(_: object, value: object) -> bool:
    return isinstance(value, int | Decimal) and not isinstance(value, bool)


def _pattern(
    validator: object, pattern: str, value: object, schema: object
) -> Iterator[ValidationError]:
    # Python's `$` also matches before a line's end.
    if isinstance(value, str) and not re.search(pattern.replace("$", r"\Z"), value):
        yield ValidationError(f"{value!r} does not match {pattern!r}")


def _pattern_properties(
    validator: object, patterns: dict[str, Json], value: object, schema: object
) -> Iterator[ValidationError]:
    if isinstance(value, dict):
        for pattern, subschema in patterns.items():
            for name, member in value.items():
                if re.search(pattern.replace("$", r"\Z"), name):
                    yield from validator.descend(member, subschema)


_Validator = extend(
    Draft202012Validator,
    validators={"pattern": _pattern, "patternProperties": _pattern_properties},
    type_checker=Draft202012Validator.TYPE_CHECKER.redefine_many(
        {"integer": _is_integer, "number": _is_number}
    ),
)
