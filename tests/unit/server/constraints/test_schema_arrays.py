"""Arrays: their items by place, by number and by what they contain."""

import pytest

from support.schema_texts import check_texts, refusal_of


@pytest.mark.parametrize(
    ("schema", "inside", "outside"),
    [
        (
            {"items": {"type": "null"}, "minItems": 1, "maxItems": 2},
            ["[null]", "[null,null]"],
            ["[]", "[null,null,null]", "[1]"],
        ),
        (
            {"prefixItems": [{"const": 1}, {"const": 2}], "items": {"const": 3}},
            ["[]", "[1]", "[1,2]", "[1,2,3,3]"],
            ["[2]", "[1,3]", "[1,2,4]"],
        ),
        (
            {"prefixItems": [{"const": 1}, {"const": 2}], "items": False, "minItems": 2},
            ["[1,2]"],
            ["[1]", "[1,2,3]", "[]"],
        ),
        ({"items": [{"const": 1}], "additionalItems": {"const": 2}}, ["[1,2,2]", "[]"], ["[1,1]"]),
        ({"contains": {"type": "null"}}, ["[null]", '[1,null,"x"]'], ["[]", "[1]"]),
        (
            {
                "contains": {"type": "null"},
                "minContains": 2,
                "maxContains": 3,
                "items": {"enum": [None, 1]},
            },
            ["[null,null]", "[1,null,1,null,null,1]"],
            ["[null]", "[null,null,null,null]"],
        ),
        (
            {"contains": {"type": "null"}, "maxContains": 1},
            ["[null]", "[1,null]"],
            ["[1]", "[null,null]"],
        ),
        ({"contains": {"type": "null"}, "minContains": 0}, ["[]", "[1]"], []),
        (
            {"items": {"enum": ["a", "b", "c"]}, "uniqueItems": True, "minItems": 2},
            ['["b","a"]', '["c","a","b"]'],
            ['["a"]', '["a","a"]', '["a","b","a"]'],
        ),
        ({"uniqueItems": True, "maxItems": 1}, ["[]", '["x"]'], ["[1,2]"]),
        (
            {
                "prefixItems": [{"type": "string"}, {"type": "null"}],
                "items": False,
                "uniqueItems": True,
            },
            ['["x",null]'],
            ['["x","x"]'],
        ),
        (
            {"allOf": [{"prefixItems": [{"type": "integer"}]}, {"items": {"minimum": 3}}]},
            ["[3]", "[4,3.5]"],
            ["[2]", "[3,2]", "[3.5]"],
        ),
        (
            {"allOf": [{"prefixItems": [{"const": 1}]}], "unevaluatedItems": {"const": 2}},
            ["[1,2,2]", "[1]"],
            ["[1,1]"],
        ),
        (
            {
                "allOf": [{"contains": {"const": 1}}, {"contains": {"const": 2}}],
                "items": {"enum": [1, 2, 3]},
            },
            ["[1,2]", "[3,2,3,1]"],
            ["[1,1]", "[3]"],
        ),
        ({"items": {"prefixItems": [False]}}, ["[[]]", "[]", "[[],[]]"], ["[[1]]"]),
    ],
)
def test_arrays(schema: dict[str, object], inside: list[str], outside: list[str]):
    check_texts({"type": "array", **schema}, inside=inside, outside=outside)


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        ({"uniqueItems": True, "items": {"type": "string"}}, "/uniqueItems"),
        (
            {"contains": {}, "unevaluatedItems": False, "allOf": [{"contains": {"const": 1}}]},
            "/unevaluatedItems",
        ),
        ({"$schema": "https://json-schema.org/draft/2020-12/schema", "items": [{}]}, "/items"),
        ({"maxItems": 1.5}, "/maxItems"),
    ],
)
def test_arrays_that_can_not_be_enforced_are_refused(schema: dict[str, object], path: str):
    assert refusal_of({"type": "array", **schema}).path == path
