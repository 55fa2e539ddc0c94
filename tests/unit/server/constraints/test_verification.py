"""Finished answers are looked at by other means than those that made them."""

import json

import msgspec
import pytest

from antiphon_server.constraints.request import ConstraintKind, ConstraintRequest
from antiphon_server.constraints.tool_calls import (
    CallChoice,
    CallWording,
    OfferedTool,
    ToolsConstraint,
)
from antiphon_server.constraints.verification import Verification


def never(_text: str) -> bool:
    raise AssertionError("the matcher is not needed")


def violation(
    kind: ConstraintKind,
    text: str,
    asked: str = "",
    *,
    max_blank: int = 2,
    is_whole: object = never,
) -> str:
    request = ConstraintRequest(
        kind=kind,
        text=asked,
        options=("yes", "no") if kind is ConstraintKind.CHOICE else (),
        max_blank=max_blank,
    )
    return Verification().find_violation(request, text, is_whole)  # type: ignore[arg-type]


def of_schema(schema: object, text: str, **values: object) -> str:
    return violation(ConstraintKind.JSON_SCHEMA, text, json.dumps(schema), **values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"type": "integer"}, "1.0"),
        ({"multipleOf": 0.1}, "0.3"),
        ({"multipleOf": 0.0001}, "12345678901234567890.1234"),
        ({"exclusiveMaximum": 0.3}, "0.29999999999999999999"),
        ({"enum": [0.5, 2]}, "0.50"),
        ({"type": "object", "properties": {"a": {"pattern": "^\\w$"}}}, '{ "a": "b"  }'),
        ({"patternProperties": {"^\\d": {"type": "null"}}}, '{"\u0661x": 1}'),
        (
            {"$schema": "http://json-schema.org/draft-07/schema#", "items": [{"type": "null"}]},
            "[null]",
        ),
        (True, '"   blank   "'),
    ],
)
def test_what_a_schema_allows_is_good(schema: object, text: str) -> None:
    assert of_schema(schema, text) == ""


@pytest.mark.parametrize(
    ("schema", "text", "what"),
    [
        ({"type": "integer"}, "1.5", "$ does not satisfy type"),
        ({"multipleOf": 0.1}, "0.35", "multipleOf"),
        ({"minimum": 0.3}, "0.29999999999999999999", "minimum"),
        ({"items": {"properties": {"a": {"maxLength": 1}}}}, '[{"a":"bc"}]', "$[0].a does not"),
        ({"patternProperties": {"^a": {"type": "null"}}}, '{"ab": 1}', "$.ab does not"),
        ({"pattern": "a$"}, '"a\\n"', "pattern"),
        (True, "[1,   2]", "3 white-space characters"),
        (True, "[1", "no JSON"),
        (True, "NaN", "no JSON"),
    ],
)
def test_what_a_schema_forbids_is_named(schema: object, text: str, what: str) -> None:
    assert what in of_schema(schema, text)


def test_white_space_can_be_forbidden_whole() -> None:
    assert of_schema(True, '{"a b": [1,"  "]}', max_blank=1) == ""
    assert "1 white-space characters" in of_schema(True, '{"a": 1}', max_blank=0)


@pytest.mark.parametrize(
    "schema",
    [
        {"items": [{"type": "null"}]},
        {"minimum": 3, "exclusiveMinimum": True},
        {"pattern": "\\p{L}"},
        {"$ref": "https://elsewhere.example.test/x"},
    ],
)
@pytest.mark.parametrize("whole", [True, False])
def test_schemas_that_the_validator_cannot_read_are_left_to_the_matcher(
    schema: object, whole: bool
) -> None:
    found = of_schema(
        schema, '[1, "a"]' if "items" in str(schema) else '"a"', is_whole=lambda _: whole
    ) or (of_schema(schema, "3", is_whole=lambda _: whole))

    assert bool(found) is not whole


def test_answers_nested_past_all_measure_are_left_to_the_matcher() -> None:
    deep = "[" * 100_000 + "]" * 100_000

    assert of_schema(True, deep, is_whole=lambda _: True) == ""


def test_objects_choices_and_expressions_are_compared() -> None:
    assert violation(ConstraintKind.JSON_OBJECT, "{}") == ""
    assert "no JSON object" in violation(ConstraintKind.JSON_OBJECT, "[]")
    assert violation(ConstraintKind.CHOICE, "no") == ""
    assert "none of the choices" in violation(ConstraintKind.CHOICE, "No")
    assert violation(ConstraintKind.REGEX, "ab", "a.") == ""
    assert "does not match" in violation(ConstraintKind.REGEX, "abc", "a.")
    assert violation(ConstraintKind.REGEX, "é", "\\p{L}", is_whole=lambda _: True) == ""


def test_grammars_are_followed_again() -> None:
    kind = ConstraintKind.EBNF
    assert violation(kind, "a", is_whole=lambda text: text == "a") == ""
    assert violation(kind, "b", is_whole=lambda text: text == "a") != ""


HEAVY_WAYS = {
    "expression": (ConstraintKind.REGEX, "(a*)*c|a{40}", "a" * 40),
    "pattern": (
        ConstraintKind.JSON_SCHEMA,
        json.dumps({"type": "string", "pattern": "([a-z]+)+[0-9]"}),
        json.dumps("a" * 40 + " b1"),
    ),
    "tag": (
        ConstraintKind.STRUCTURAL_TAG,
        json.dumps({"format": {"type": "regex", "pattern": "(a*)*c|a{40}"}}),
        "a" * 40,
    ),
}
"""Each has its texts matched by going back more often than there is time for."""


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("name", HEAVY_WAYS)
def test_what_takes_too_long_to_match_is_left_to_the_matcher(name: str, whole: bool) -> None:
    kind, asked, text = HEAVY_WAYS[name]
    followed = []
    verification = Verification(look_limit_s=0.02)
    request = ConstraintRequest(kind=kind, text=asked, max_blank=2)

    def follow(text: str) -> bool:
        followed.append(text)
        return whole

    found = [verification.find_violation(request, text, follow) for _ in range(2)]

    assert [not fault for fault in found] == [whole] * 2
    assert followed == [text] * 2


def test_arguments_that_take_too_long_to_match_are_left_to_those_who_made_them() -> None:
    _, schema, text = HEAVY_WAYS["pattern"]
    parameters = {"properties": {"code": json.loads(schema)}, "required": ["code"]}
    tool = OfferedTool(index=0, name="look_up", schema=json.dumps(parameters))
    wording = CallWording(opener="", heads=("",), tail="", separator="", closer="")
    asked = ToolsConstraint(
        tools=(tool,), choice=CallChoice.ONE, takes_several=True, wording=wording
    )
    request = ConstraintRequest(kind=ConstraintKind.TOOLS, text=msgspec.json.encode(asked).decode())

    def look(arguments: str) -> str:
        calls = json.dumps([["look_up", arguments]])
        return Verification(look_limit_s=0.02).find_violation(request, calls, never)

    assert look(f'{{"code": {text}}}') == ""
    assert look(f'{{"cod": {text}}}') != ""
