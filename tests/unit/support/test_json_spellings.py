"""Texts of one value: that they say it, and in which order."""

import json
from decimal import Decimal

from support.json_spellings import Spelling, odd_texts, valid_texts, write


def test_properties_come_in_the_schemas_order_with_others_behind():
    schema = {"properties": {"b": {}, "a": {"properties": {"d": {}, "c": {}}}}}
    value = {"x": 1, "a": {"c": 1, "d": 2}, "b": 3}

    assert valid_texts(value, schema)[0] == '{"b":3,"a":{"d":2,"c":1},"x":1}'


def test_order_is_found_through_references_and_all_that_applies():
    schema = {
        "$defs": {"x/y": {"properties": {"c": {}}}},
        "allOf": [{"$ref": "#/$defs/x~1y"}],
        "anyOf": [{"required": ["b"]}],
        "properties": {"a": {}},
    }

    first, *others = valid_texts({"a": 1, "b": 2, "c": 3}, schema)

    assert first == '{"a":1,"c":3,"b":2}'
    assert '{"c":3,"b":2,"a":1}' in others


def test_constants_come_as_the_schema_writes_them():
    schema = {"const": {"foo": [1, {"b": 1, "a": 2}], "bar": True}}

    texts = valid_texts({"bar": True, "foo": [1, {"a": 2, "b": 1}]}, schema)

    assert texts[0] == '{"foo":[1,{"b":1,"a":2}],"bar":true}'


def test_numbers_keep_their_digits_and_have_a_plain_spelling():
    assert valid_texts(Decimal("1.50"), True) == ["1.50", "1.5"]
    assert valid_texts(Decimal("1E+3"), True) == ["1E+3", "1000"]
    assert valid_texts(Decimal("2.0"), True) == ["2.0", "2"]


def test_odd_texts_say_the_same_value():
    value = {"é\n": ["a", "", "😀", 'q"'], "": None}

    assert all(json.loads(text) == value for text in odd_texts(value, True))
    assert '"\\u00e9\\n"' in odd_texts(value, True)[0]


def test_lone_surrogates_are_written_as_escapes():
    assert write("\ud800x", Spelling()) == '"\\ud800x"'
