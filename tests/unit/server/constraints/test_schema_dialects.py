"""What `$schema` and `$id` decide: which keywords have a meaning, and what references mean."""

import pytest

from support.schema_texts import check_texts, refusal_of

_DRAFT_7 = "http://json-schema.org/draft-07/schema#"
_DRAFT_2020 = "https://json-schema.org/draft/2020-12/schema"


@pytest.mark.parametrize(
    ("schema", "inside", "outside"),
    [
        pytest.param(
            {
                "$schema": _DRAFT_7,
                "$ref": "#/definitions/a",
                "maxLength": 1,
                "definitions": {"a": {}},
            },
            ['"long"'],
            [],
            id="beside an older reference nothing counts",
        ),
        pytest.param(
            {"$ref": "#/definitions/a", "maxLength": 1, "definitions": {"a": {"type": "string"}}},
            ['"x"'],
            ['"long"', "1"],
            id="beside a reference all counts",
        ),
        pytest.param(
            {"$schema": _DRAFT_2020, "type": "string", "format": "date"},
            ['"soon"'],
            ["1"],
            id="a format is a note where the draft says so",
        ),
        pytest.param(
            {"type": "string", "format": "date"},
            ['"2024-02-29"'],
            ['"2023-02-29"', '"soon"'],
            id="a format is enforced elsewhere",
        ),
        pytest.param(
            {"type": "string", "format": "colour"}, ['"any"'], ["1"], id="an unknown format"
        ),
        pytest.param(
            {
                "$id": "https://shop.example/order",
                "$ref": "part#/$defs/n",
                "$defs": {"p": {"$id": "part", "$defs": {"n": {"type": "null"}}}},
            },
            ["null"],
            ["1"],
            id="a reference to a part with a name of its own",
        ),
        pytest.param(
            {"$ref": "#hue", "$defs": {"h": {"$anchor": "hue", "enum": ["red"]}}},
            ['"red"'],
            ['"blue"'],
            id="an anchor",
        ),
        pytest.param(
            {
                "$schema": "http://json-schema.org/draft-04/schema#",
                "id": "https://shop.example/",
                "type": "array",
                "items": {"$ref": "hue"},
                "definitions": {"h": {"id": "hue", "enum": ["red"]}},
            },
            ['["red"]', "[]"],
            ['["blue"]'],
            id="draft 4's id",
        ),
        pytest.param(
            {"$dynamicRef": "#node", "$defs": {"n": {"$dynamicAnchor": "node", "type": "null"}}},
            ["null"],
            ["1"],
            id="a dynamic reference with one meaning",
        ),
        pytest.param(
            {
                "anyOf": [{"type": "null"}, {"type": "array", "items": {"$ref": "#"}}],
            },
            ["null", "[]", "[null,[[]]]"],
            ["[1]", "{}"],
            id="a schema within itself",
        ),
        pytest.param(
            {"const": {"$id": "x", "$ref": "nowhere"}},
            ['{"$id":"x","$ref":"nowhere"}'],
            ["{}"],
            id="names inside a constant name nothing",
        ),
    ],
)
def test_keywords_mean_what_their_dialect_says(
    schema: object, inside: list[str], outside: list[str]
):
    check_texts(schema, inside=inside, outside=outside)


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        ({"$schema": "http://json-schema.org/draft-03/schema#"}, "/$schema"),
        ({"$schema": "https://shop.example/meta"}, "/$schema"),
        ({"$schema": 7}, "/$schema"),
        ({"items": {"type": "string", "format": "regex"}}, "/items/format"),
        (
            {
                "$dynamicRef": "#n",
                "$defs": {
                    "a": {"$dynamicAnchor": "n"},
                    "b": {"$id": "b", "$dynamicAnchor": "n"},
                },
            },
            "/$dynamicRef",
        ),
    ],
)
def test_what_a_dialect_leaves_open_is_refused(schema: object, path: str):
    assert refusal_of(schema).path == path
