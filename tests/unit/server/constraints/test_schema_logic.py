"""Keywords that combine schemas: all that stands at one place holds together."""

import pytest

from support.schema_texts import check_texts, refusal_of


@pytest.mark.parametrize(
    ("schema", "inside", "outside"),
    [
        pytest.param(
            {"allOf": [{"type": "integer"}, {"minimum": 3}, {"maximum": 5}]},
            ["3", "5"],
            ["2", "6", '"x"', "3.5"],
            id="allOf",
        ),
        pytest.param(
            {"anyOf": [{"type": "null"}, {"type": "string", "maxLength": 1}], "minLength": 1},
            ["null", '"a"'],
            ['""', '"ab"', "1"],
            id="anyOf beside another keyword",
        ),
        pytest.param(
            {"oneOf": [{"type": "integer", "minimum": 5}, {"type": "integer", "maximum": 7}]},
            ["4", "8"],
            ["5", "7", "6"],
            id="oneOf where both hold",
        ),
        pytest.param(
            {"oneOf": [{"type": "number"}, {"type": "integer"}]},
            ["1.5", "-0.25"],
            ["1", "2.0"],
            id="oneOf where one is within the other",
        ),
        pytest.param(
            {"type": "object", "oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
            ['{"a":1}', '{"b":1}', '{"a":1,"c":2}'],
            ["{}", '{"a":1,"b":2}', '{"b":1,"a":2}'],
            id="oneOf by which names there are",
        ),
        pytest.param(
            {
                "oneOf": [
                    {"properties": {"k": {"const": "x"}, "v": {"type": "null"}}, "required": ["k"]},
                    {"properties": {"k": {"const": "y"}}, "required": ["k"]},
                ],
                "type": "object",
            },
            ['{"k":"x","v":null}', '{"k":"y","v":1}'],
            ['{"k":"x","v":1}', '{"k":"z"}', "{}"],
            id="oneOf by a constant",
        ),
        pytest.param(
            {"type": ["string", "integer"], "not": {"const": "no"}},
            ['"yes"', "1", '"n"'],
            ['"no"', "null"],
            id="not a constant",
        ),
        pytest.param(
            {"not": {"type": ["object", "array", "number", "boolean", "null"]}},
            ['"x"'],
            ["1", "{}", "null"],
            id="not of types",
        ),
        pytest.param(
            {"type": "object", "not": {"required": ["a", "b"]}},
            ['{"a":1}', '{"b":1}', "{}"],
            ['{"a":1,"b":2}', '{"b":1,"a":2}'],
            id="not required together",
        ),
        pytest.param(
            {"type": "array", "not": {"items": {"type": "integer"}}},
            ['["x"]', '[1,"x",2]'],
            ["[]", "[1]", "[1,2]"],
            id="not all items",
        ),
        pytest.param(
            {"not": {"anyOf": [{"type": "string"}, {"minimum": 0}]}, "type": ["string", "number"]},
            ["-1"],
            ["0", '"x"'],
            id="not any of",
        ),
        pytest.param(
            {
                "type": "object",
                "properties": {"kind": {"enum": ["a", "b"]}, "size": {"type": "integer"}},
                "required": ["kind"],
                "if": {"properties": {"kind": {"const": "a"}}},
                "then": {"required": ["size"]},
                "else": {"properties": {"size": False}},
            },
            ['{"kind":"a","size":1}', '{"kind":"b"}'],
            ['{"kind":"a"}', '{"kind":"b","size":1}'],
            id="if, then and else",
        ),
        pytest.param(
            {"type": "integer", "if": {"minimum": 10}, "then": {"multipleOf": 10}},
            ["3", "20"],
            ["13"],
            id="if without else",
        ),
        pytest.param(
            {"enum": ["red", 4, {"a": [1]}, None], "not": {"type": "integer"}},
            ['"red"', '{"a":[1]}', "null"],
            ["4", '{"a":[1,2]}', '{"a":[1],"b":2}', '"blue"'],
            id="enum beside not",
        ),
        pytest.param(
            {"enum": ["a", "bb", "ccc"], "minLength": 2},
            ['"bb"', '"ccc"'],
            ['"a"'],
            id="enum beside a length",
        ),
        pytest.param({"const": {"x": 1}}, ['{"x":1}'], ["{}", '{"x":2}'], id="const object"),
        pytest.param(
            {"not": {"const": {"x": 1}}, "type": "object"},
            ["{}", '{"x":2}', '{"x":1,"y":2}'],
            ['{"x":1}'],
            id="not a const object",
        ),
        pytest.param(True, ["1", "{}", '[null,{"a":"b"}]'], ["x", "{", "[1,]"], id="true"),
        pytest.param({"definitely": "unknown"}, ["1"], ["x"], id="an unknown keyword"),
    ],
)
def test_schemas_are_combined(schema: object, inside: list[str], outside: list[str]):
    check_texts(schema, inside=inside, outside=outside)


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        (False, ""),
        ({"type": "string", "minLength": 3, "maxLength": 2}, ""),
        ({"allOf": [{"type": "string"}, {"type": "integer"}]}, ""),
        ({"type": "object", "required": ["a"], "properties": {"a": False}}, ""),
        ({"properties": {"n": {"$ref": "#"}}, "required": ["n"], "type": "object"}, ""),
        ({"type": "text"}, "/type"),
        ({"anyOf": []}, "/anyOf"),
        ({"properties": {"a": {"minLength": -1}}}, "/properties/a/minLength"),
        ({"properties": {"a": {"required": True}}}, "/properties/a/required"),
        ({"not": {"unevaluatedProperties": False}}, "/not/unevaluatedProperties"),
        ({"not": {"uniqueItems": True}}, "/not/uniqueItems"),
    ],
)
def test_what_has_no_values_or_no_meaning_is_refused(schema: object, path: str):
    assert refusal_of(schema).path == path
