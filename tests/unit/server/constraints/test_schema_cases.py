"""What people met elsewhere: keywords that were dropped, references that meant anything."""

import pytest

from support.schema_texts import check_texts, refusal_of, texts_of


def test_a_union_beside_an_objects_keywords_takes_nothing_from_them():
    check_texts(
        {
            "type": "object",
            "properties": {
                "part": {"type": "string", "maxLength": 8},
                "pieces": {"type": "integer", "minimum": 1, "maximum": 40},
                "grams": {"type": "number", "minimum": 0},
            },
            "required": ["part"],
            "additionalProperties": False,
            "anyOf": [{"required": ["pieces"]}, {"required": ["grams"]}],
        },
        inside=['{"part":"nut","pieces":3}', '{"part":"","pieces":1,"grams":0.5}'],
        outside=['{"part":"nut"}', '{"part":"nut","pieces":3,"x":1}', "[1]", '{"pieces":3}', '"x"'],
    )


def test_a_length_holds_beside_a_pattern_and_beside_a_format():
    check_texts(
        {"type": "string", "pattern": "^[a-f]+$", "minLength": 2, "maxLength": 3},
        inside=['"ab"', '"fed"'],
        outside=['"a"', '"abcd"', '"AB"', '"xy"'],
    )
    check_texts(
        {"type": "string", "format": "email", "maxLength": 9},
        inside=['"me@abc.de"'],
        outside=['"someone@abc.de"', '"me"', '"@"'],
    )


def test_a_blank_of_a_pattern_is_one_to_every_validator():
    """To ECMA-262 alone U+FEFF is one: it is neither said for a blank nor for what is none."""
    check_texts(
        {"type": "string", "pattern": r"^a\s?b$"},
        inside=['"a b"', '"ab"', '"a\u2003b"'],
        outside=['"a\ufeffb"', '"a\u200bb"'],
    )
    check_texts(
        {"type": "string", "not": {"pattern": r"\s"}},
        inside=['"ab"', '"a\u200bb"'],
        outside=['"a b"', '"a\ufeffb"'],
    )


@pytest.mark.parametrize(
    ("schema", "inside", "outside"),
    [
        ({"exclusiveMinimum": 0, "maximum": 2.5}, ["0.001", "2.5", "1"], ["0", "-1", "2.51"]),
        ({"type": "integer", "minimum": -3, "exclusiveMaximum": 2}, ["-3", "1"], ["-4", "2"]),
        ({"type": "integer", "minimum": 12}, ["12", "19", "100"], ["11", "9", "-12"]),
        ({"minimum": 0.1, "maximum": 0.30, "type": "number"}, ["0.1", "0.30"], ["0.09", "0.31"]),
        ({"minimum": 5, "exclusiveMinimum": True}, ["6", "5.1"], ["5", "5.0"]),
        ({"multipleOf": 0.05, "minimum": 0, "maximum": 1}, ["0.35", "0", "1"], ["0.36", "1.05"]),
        ({"not": {"multipleOf": 0.5}, "minimum": 0}, ["0.25", "3.7", "1.51"], ["0.5", "2", "1.50"]),
        ({"type": "integer", "not": {"multipleOf": 1.5}}, ["1", "2", "4"], ["0", "3", "-6"]),
        ({"multipleOf": 0.3, "not": {"multipleOf": 0.6}}, ["0.3", "0.9"], ["0.6", "0", "0.4"]),
        ({"anyOf": [{"multipleOf": 7}, {"minimum": 100}]}, ["7", "14", "100.5"], ["8", "99"]),
        ({"not": {"multipleOf": 1}}, ["0.5"], ["1", "2.0"]),
        ({"type": "integer", "multipleOf": 7}, ["0", "14", "-21", "700"], ["1", "15", "7.0"]),
    ],
)
def test_edges_of_numbers_are_exact(
    schema: dict[str, object], inside: list[str], outside: list[str]
):
    check_texts({"type": "number", **schema}, inside=inside, outside=outside)


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        ({"properties": {"c": {"$ref": "/$defs/Hue"}}, "$defs": {"Hue": {}}}, "/properties/c/$ref"),
        ({"items": {"$ref": "https://shop.example/hue.json"}}, "/items/$ref"),
        ({"$ref": "#/$defs/Hue", "$defs": {}}, "/$ref"),
        ({"$ref": "#hue", "$defs": {"Hue": {}}}, "/$ref"),
        ({"$defs": {"A": {"$ref": "#/$defs/A"}}, "$ref": "#/$defs/A"}, "/$defs/A"),
        ({"$ref": "#/properties/x/const", "properties": {"x": {"const": 4}}}, "/$ref"),
    ],
)
def test_a_reference_that_means_nothing_is_refused_by_its_place(schema: object, path: str):
    assert refusal_of(schema).path == path


def test_escaped_references_are_followed():
    check_texts(
        {
            "type": "object",
            "properties": {
                "a": {"$ref": "#/$defs/m~1s"},
                "b": {"$ref": "#/$defs/approx~0"},
                "c": {"$ref": "#/$defs/two%20words"},
                "d": {"$ref": "#/properties/c"},
            },
            "required": ["a", "b", "c"],
            "additionalProperties": False,
            "$defs": {
                "m/s": {"type": "integer"},
                "approx~": {"type": "boolean"},
                "two words": {"const": "yes"},
            },
        },
        inside=['{"a":1,"b":true,"c":"yes"}', '{"a":1,"b":true,"c":"yes","d":"yes"}'],
        outside=['{"a":"1","b":true,"c":"yes"}', '{"a":1,"b":true,"c":"yes","d":"no"}'],
    )


@pytest.mark.parametrize("pattern", ["(?<=x)y", r"^(a|b)\1$", "^(x$)*y"])
def test_a_pattern_that_is_not_regular_is_refused_with_the_field_and_the_construct(pattern: str):
    schema = {"properties": {"code": {"type": "string", "pattern": pattern}}}
    refusal = refusal_of(schema)
    assert refusal.path == "/properties/code/pattern"
    assert pattern in refusal.message or repr(pattern) in refusal.message


def test_a_pattern_without_anchors_is_searched_for():
    check_texts(
        {"type": "string", "pattern": "[0-9]{2}"}, inside=['"a12b"', '"12"'], outside=['"1a2"']
    )


def test_white_space_has_a_bound_or_there_is_none():
    schema = {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "null"}}}}
    bounded = texts_of(schema, max_blank=3)
    assert bounded.has('{ \n "a"\t: [\n  null ,   null ]   }')
    assert not bounded.has('{    "a":[]}')
    assert not bounded.has('{"a":[]} ')
    assert not texts_of(schema, max_blank=0).has('{"a": []}')


def test_white_space_where_nobody_breaks_a_line_has_a_smaller_bound():
    schema = {"type": "object", "additionalProperties": {"type": "array", "items": {"$ref": "#"}}}
    texts = texts_of(schema, max_blank=16)
    assert texts.has(' \n{"a" : [ {} ,\n        {}]\n, "b":[]}')
    assert not texts.has('{"a"  :[]}')
    assert not texts.has('{"a":  []}')
    assert not texts.has('{"a":[]  ,"b":[]}')
    assert not texts.has('{"a":[{}  ,{}]}')
    assert not texts.has("   {}")
    assert texts.has('{"a":[' + " " * 16 + "{}]}")
