"""Objects: their members by name, by pattern and by number."""

import pytest

from support.schema_texts import check_texts, refusal_of

_CLOSED = {"type": "object", "additionalProperties": False}


@pytest.mark.parametrize(
    ("schema", "inside", "outside"),
    [
        pytest.param(
            {**_CLOSED, "properties": {"a": {"const": 1}, "b": {"const": 2}, "c": {"const": 3}}},
            ["{}", '{"a":1}', '{"b":2}', '{"a":1,"c":3}', '{"b":2,"c":3}', '{"a":1,"b":2,"c":3}'],
            ['{"c":3,"a":1}', '{"d":4}', '{"a":1,}', '{,"a":1}', '{"a":1,"a":1}'],
            id="any subset, in the schema's order",
        ),
        pytest.param(
            {"type": "object", "properties": {"a": {"type": "null"}}, "required": ["z", "a"]},
            ['{"a":null,"z":1}', '{"a":null,"z":{},"y":2}'],
            ['{"z":1}', '{"a":1,"z":1}'],
            id="required without properties",
        ),
        pytest.param(
            {
                "type": "object",
                "properties": {"ab": {"type": "null"}},
                "additionalProperties": {"type": "integer"},
            },
            ['{"ab":null,"a":1,"abc":2}', '{"x":1}'],
            ['{"ab":1}', '{"a":null}', '{"x":1,"ab":null}'],
            id="other names have the other schema",
        ),
        pytest.param(
            {**_CLOSED, "patternProperties": {"^n_": {"type": "integer"}, "s$": {"maximum": 5}}},
            ['{"n_a":9}', '{"n_s":4}', '{"xs":1}', '{"xs":"t"}'],
            ['{"n_s":9}', '{"xs":7}', '{"q":1}'],
            id="a name may match several patterns",
        ),
        pytest.param(
            {
                **_CLOSED,
                "properties": {"n_a": {"minimum": 3}},
                "patternProperties": {"^n_": {"type": "integer"}},
            },
            ['{"n_a":3}'],
            ['{"n_a":2}', '{"n_a":"x"}', '{"n_a":3.5}'],
            id="a known name may match a pattern",
        ),
        pytest.param(
            {"type": "object", "propertyNames": {"pattern": "^[a-c]$"}, "maxProperties": 1},
            ["{}", '{"a":1}', '{"c":[]}'],
            ['{"d":1}', '{"a":1,"b":2}'],
            id="names and their number",
        ),
        pytest.param(
            {"type": "object", "propertyNames": {"enum": ["x", "y", "z"]}, "minProperties": 2},
            ['{"x":1,"z":2}', '{"x":1,"y":1,"z":2}'],
            ['{"y":1}', "{}", '{"x":1,"x":2}'],
            id="a number of listed names",
        ),
        pytest.param(
            {
                **_CLOSED,
                "properties": {"a": {}, "b": {}, "c": {}},
                "minProperties": 1,
                "maxProperties": 2,
            },
            ['{"a":1}', '{"b":1,"c":2}'],
            ["{}", '{"a":1,"b":2,"c":3}'],
            id="a number of known names",
        ),
        pytest.param(
            {"type": "object", "minProperties": 1},
            ['{"q":1}', '{"q":1,"r":2}'],
            ["{}"],
            id="at least one unknown name",
        ),
        pytest.param(
            {
                **_CLOSED,
                "properties": {"a": {}, "b": {}, "c": {}},
                "dependentRequired": {"a": ["c"]},
            },
            ["{}", '{"b":1}', '{"a":1,"c":2}'],
            ['{"a":1}', '{"a":1,"b":1}'],
            id="dependentRequired",
        ),
        pytest.param(
            {
                **_CLOSED,
                "properties": {"a": {}, "b": {}},
                "dependencies": {"a": {"properties": {"b": {"type": "null"}}}},
            },
            ['{"b":1}', '{"a":1,"b":null}'],
            ['{"a":1,"b":1}'],
            id="a dependency on a schema",
        ),
        pytest.param(
            {
                "type": "object",
                "properties": {'q"\\': {"type": "null"}, "é\n": {"type": "null"}},
                "additionalProperties": False,
            },
            ['{"q\\"\\\\":null,"é\\n":null}'],
            ['{"q":null}'],
            id="names that need escapes",
        ),
        pytest.param(
            {
                "type": "object",
                "allOf": [{"properties": {"a": {}}, "required": ["a"]}],
                "anyOf": [
                    {"properties": {"b": {"type": "null"}}},
                    {"properties": {"c": {"type": "null"}}},
                ],
                "unevaluatedProperties": False,
            },
            ['{"a":1}', '{"a":1,"b":null}', '{"a":1,"c":null}', '{"a":1,"b":null,"c":null}'],
            ['{"a":1,"d":1}', '{"a":1,"b":1}', "{}"],
            id="unevaluatedProperties",
        ),
        pytest.param(
            {"type": "object", "not": {"additionalProperties": {"type": "integer"}}},
            ['{"a":"x"}', '{"b":1,"a":"x"}'],
            ["{}", '{"a":1}', '{"a":1,"b":2}'],
            id="some member of an unknown name",
        ),
    ],
)
def test_objects(schema: object, inside: list[str], outside: list[str]):
    check_texts(schema, inside=inside, outside=outside)


def test_a_later_equal_name_can_not_undo_what_a_negation_demands():
    schema = {"type": "object", "not": {"additionalProperties": {"type": "integer"}}}
    check_texts(schema, inside=['{"a":1,"a":"x"}'], outside=['{"a":"x","a":1}'])


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        ({"type": "object", "minProperties": 2}, "/minProperties"),
        ({"type": "object", "patternProperties": {"(": {}}}, "/patternProperties"),
        ({"items": {"dependentRequired": {"a": "b"}}}, "/items/dependentRequired"),
        ({"properties": []}, "/properties"),
    ],
)
def test_objects_that_can_not_be_enforced_are_refused(schema: object, path: str):
    assert refusal_of(schema).path == path
