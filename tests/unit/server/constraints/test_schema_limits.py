"""Schemas that ask for too much are refused before they take long; the limits count, so always."""

import json

import pytest

from antiphon_server.constraints.json_schema import PlanLimits, plan_schema
from antiphon_server.constraints.refusals import ConstraintTooComplexError

_LADDER = {"allOf": [{"anyOf": [{"required": [f"{i}{j}"]} for j in range(4)]} for i in range(9)]}
_CHAIN = {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(3000)}


@pytest.mark.parametrize(
    "schema",
    [
        pytest.param(_LADDER, id="unions beside unions"),
        pytest.param(
            {"dependentRequired": {f"a{i}": [f"b{i}"] for i in range(16)}}, id="dependent"
        ),
        pytest.param({"$ref": "#/$defs/d0", "$defs": {**_CHAIN, "d3000": True}}, id="a long chain"),
        pytest.param(
            {"contains": {"const": 1}, "minContains": 400, "minItems": 400}, id="counting far"
        ),
        pytest.param(
            {"type": "integer", "multipleOf": 997, "maximum": 987654321}, id="many remainders"
        ),
        pytest.param(
            {
                "properties": {f"p{i}": {} for i in range(500)},
                "minProperties": 200,
                "additionalProperties": False,
            },
            id="counting many members",
        ),
    ],
)
def test_what_takes_too_much_is_too_complex(schema: object):
    with pytest.raises(ConstraintTooComplexError):
        plan_schema(json.dumps(schema), max_blank=0, limits=PlanLimits())


@pytest.mark.parametrize(
    ("limits", "limit"),
    [
        (PlanLimits(max_rules=10), "10"),
        (PlanLimits(max_grammar_bytes=500), "500"),
        (PlanLimits(max_work=3), "3"),
        (PlanLimits(max_cases=1), "1"),
        (PlanLimits(max_depth=2), "2"),
    ],
)
def test_each_limit_is_named(limits: PlanLimits, limit: str):
    schema = {
        "type": "object",
        "properties": {f"p{i}": {"anyOf": [{"type": "null"}, {"const": i}]} for i in range(20)},
    }
    with pytest.raises(ConstraintTooComplexError) as refusal:
        plan_schema(json.dumps(schema), max_blank=0, limits=limits)
    assert refusal.value.metadata["limit"] == limit


def test_large_but_plain_schemas_are_fine():
    schema = {
        "type": "object",
        "properties": {f"p{i}": {"type": "string", "enum": ["x", f"y{i}"]} for i in range(1000)},
        "required": [f"p{i}" for i in range(0, 1000, 2)],
    }
    assert plan_schema(json.dumps(schema), max_blank=0, limits=PlanLimits()).text
