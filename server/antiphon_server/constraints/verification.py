"""Whether a finished output is as it had to be, found by other means than those that made it so."""

import json
import re
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from fractions import Fraction
from functools import partial
from typing import Final

import jsonschema
import referencing.exceptions

from antiphon_server.constraints.bounded_looks import LOOK_LIMIT_S, BoundedLooks
from antiphon_server.constraints.pattern_spelling import compile_pattern
from antiphon_server.constraints.request import ConstraintKind, ConstraintRequest
from antiphon_server.constraints.structural_tags.recognition import find_fault_in_tag
from antiphon_server.constraints.tool_calls import find_fault_in_calls

_OUTSIDE_OF_STRINGS: Final = re.compile(r'"(?:[^"\\]|\\.)*"|([ \t\r\n]+)', re.DOTALL)
_MAX_EXACT_EXPONENT: Final = 400
_MAX_VALIDATORS: Final = 32
_MAX_PATH_CHARACTERS: Final = 200

_NOT_FOR_THE_VALIDATOR: Final = (
    jsonschema.exceptions.SchemaError,
    jsonschema.exceptions.UnknownType,
    referencing.exceptions.Unresolvable,
    referencing.exceptions.Unretrievable,
    re.error,
    RecursionError,
    ArithmeticError,
    AttributeError,
    KeyError,
    TypeError,
    ValueError,
)
"""What the validator raises on schemas whose meaning the planner knows better than it does."""


class Verification:
    """Looks at finished answers. Keeps the validators of the schemas that it saw last.

    For the main thread of a process alone.
    """

    def __init__(self, *, look_limit_s: float = LOOK_LIMIT_S) -> None:
        """Sets the processor time after which a look is left to the matcher."""
        self._looks = BoundedLooks(limit_s=look_limit_s)
        self._validators: OrderedDict[str, jsonschema.protocols.Validator | None] = OrderedDict()

    def find_violation(
        self, request: ConstraintRequest, text: str, is_whole: Callable[[str], bool]
    ) -> str:
        """Returns what is wrong with an answer; empty: nothing.

        JSON is parsed and validated with the caller's own schema, with numbers taken exactly;
        choices are compared, expressions matched, and structural tags read in all possible ways.
        What has no other reading, or none that comes to an end in time, is followed from the
        beginning by a matcher of this process's own.

        Args:
            request: What it had to be like.
            text: The answer; of TOOLS, the calls alone.
            is_whole: Returns whether a text is a whole of the constraint's grammar.
        """
        if request.kind is ConstraintKind.TOOLS:
            return find_fault_in_calls(request.text, text, self._find_in_arguments)
        by = f"{request.kind} {request.text}"
        fault = self._looks.take(by, partial(self._look, request, text))
        if fault is None:
            return "" if is_whole(text) else "it is no whole of its grammar"
        return fault

    def _look(self, request: ConstraintRequest, text: str) -> str | None:
        match request.kind:
            case ConstraintKind.JSON_SCHEMA | ConstraintKind.JSON_OBJECT:
                return _find_in_blanks(text, request.max_blank) or self._find_in_json(request, text)
            case ConstraintKind.REGEX:
                return _find_by_expression(request.text, text)
            case ConstraintKind.CHOICE:
                return "" if text in request.options else "it is none of the choices"
            case ConstraintKind.STRUCTURAL_TAG:
                return find_fault_in_tag(
                    request.text, text, partial(self._find_in_value, request.max_blank)
                )
        return None

    def _find_in_arguments(self, schema: str, arguments: str) -> str | None:
        request = ConstraintRequest(kind=ConstraintKind.JSON_SCHEMA, text=schema)
        return self._looks.take(schema, partial(self._find_in_json, request, arguments))

    def _find_in_value(
        self, max_blank: int, schema: str, text: str, own_blank: int | None
    ) -> str | None:
        most = max_blank if own_blank is None else min(own_blank, max_blank)
        request = ConstraintRequest(kind=ConstraintKind.JSON_SCHEMA, text=schema)
        return _find_in_blanks(text, most) or self._find_in_json(request, text)

    def _find_in_json(self, request: ConstraintRequest, text: str) -> str | None:
        """Returns what is wrong; None: the validator can't say."""
        try:
            value = _parse(text)
        except ValueError as error:
            return f"it is no JSON: {error}"
        except RecursionError:
            return None
        if request.kind is ConstraintKind.JSON_OBJECT:
            return "" if isinstance(value, dict) else "it is no JSON object"
        return self._find_by_schema(request.text, value)

    def _find_by_schema(self, schema: str, value: object) -> str | None:
        validator = self._validator_of(schema)
        if validator is None:
            return None
        try:
            for fault in validator.iter_errors(value):
                place = str(fault.json_path)[:_MAX_PATH_CHARACTERS]
                return f"{place} does not satisfy {fault.validator}"
        except _NOT_FOR_THE_VALIDATOR:
            return None
        return ""

    def _validator_of(self, text: str) -> "jsonschema.protocols.Validator | None":
        """Returns the validator of a schema; None: it can't read it."""
        if text in self._validators:
            self._validators.move_to_end(text)
            return self._validators[text]
        try:
            validator = _make_validator(text)
        except _NOT_FOR_THE_VALIDATOR:
            validator = None
        self._validators[text] = validator
        if len(self._validators) > _MAX_VALIDATORS:
            self._validators.popitem(last=False)
        return validator


def _make_validator(text: str) -> "jsonschema.protocols.Validator":
    schema = _parse(text)
    kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    kind.check_schema(schema)
    exact = {
        "multipleOf": _check_multiple,
        "pattern": _check_pattern,
        "patternProperties": _check_pattern_properties,
    }
    return jsonschema.validators.extend(kind, exact)(schema)


def _find_in_blanks(text: str, most: int) -> str:
    longest = max((len(run) for run in _OUTSIDE_OF_STRINGS.findall(text)), default=0)
    if longest <= most:
        return ""
    return f"it has {longest} white-space characters in a row, and {most} are allowed"


def _find_by_expression(pattern: str, text: str) -> str | None:
    try:
        matches = compile_pattern(pattern).fullmatch(text)
    except (ValueError, re.error):
        return None
    return "" if matches else "it does not match"


def _parse(text: str) -> object:
    """Returns a JSON value whose numbers are exact. Raises ValueError."""
    return json.loads(text, parse_float=_exact_number, parse_constant=_no_number)


def _exact_number(text: str) -> int | Decimal:
    number = Decimal(text)
    _, _, exponent = number.as_tuple()
    if not isinstance(exponent, int) or abs(exponent) > _MAX_EXACT_EXPONENT:
        raise ValueError("a number has too large an exponent")
    return int(number) if number == number.to_integral_value() else number


def _no_number(text: str) -> object:
    raise ValueError(f"{text} is no number")


def _check_multiple(
    _validator: object, factor: int | Decimal, value: object, _schema: object
) -> Iterator[jsonschema.ValidationError]:
    """Tells of a number that is no multiple; the library's own would round."""
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        return
    if Fraction(value) % Fraction(factor):
        yield jsonschema.ValidationError("is no multiple")


def _check_pattern(
    _validator: object, pattern: str, value: object, _schema: object
) -> Iterator[jsonschema.ValidationError]:
    """Tells of a string that has no match; the library takes patterns for Python's."""
    if isinstance(value, str) and not compile_pattern(pattern).search(value):
        yield jsonschema.ValidationError("has no match")


def _check_pattern_properties(
    validator: "jsonschema.protocols.Validator",
    patterns: Mapping[str, object],
    value: object,
    _schema: object,
) -> Iterator[jsonschema.ValidationError]:
    """Tells what is wrong with members whose names match."""
    if not isinstance(value, dict):
        return
    for pattern, schema in patterns.items():
        expression = compile_pattern(pattern)
        for name, member in value.items():
            if expression.search(name):
                yield from validator.descend(member, schema, path=name, schema_path=pattern)
