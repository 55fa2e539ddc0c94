"""Structural tags that aren't taken: each with the JSON path of what is at fault."""

import pytest

from support.tag_texts import refusal_of

Node = dict[str, object]

ANY: Node = {"type": "any_text"}
NULL: Node = {"type": "json_schema", "json_schema": {"type": "null"}}
NUMBER: Node = {"type": "json_schema", "json_schema": {"type": "number"}}
EVEN: Node = {"type": "json_schema", "json_schema": {"type": "integer", "multipleOf": 2}}
TAG: Node = {"begin": "<a>", "content": ANY, "end": "</a>"}


def fixed(text: str) -> Node:
    return {"type": "const_string", "value": text}


def row(*elements: object) -> Node:
    return {"type": "sequence", "elements": elements}


def expression(pattern: str) -> Node:
    return {"type": "regex", "pattern": pattern}


def either(*elements: object) -> Node:
    return {"type": "or", "elements": elements}


def triggered(triggers: list[str], *begins: str, **options: object) -> Node:
    tags = [{**TAG, "begin": begin} for begin in begins]
    return {"type": "triggered_tags", "triggers": triggers, "tags": tags, **options}


@pytest.mark.parametrize(
    ("wanted", "path"),
    [
        (row(fixed("a"), {"type": "any_txt"}), ".elements[1].type"),
        (row(fixed("a"), "b"), ".elements[1]"),
        (row(), ".elements"),
        ({"value": "a"}, ""),
        ({"type": "const_string"}, ""),
        ({"type": "const_string", "value": 3}, ".value"),
        ({"type": "const_string", "value": "\ud800"}, ".value"),
        ({"type": "const_string", "value": "a", "text": "b"}, ".text"),
        ({**ANY, "\ud800": 1}, ""),
        (
            {"type": "json_schema", "json_schema": {"required": ["\udfff"]}},
            ".json_schema#/required/0",
        ),
        ({"type": "regex", "pattern": ""}, ".pattern"),
        ({"type": "regex", "pattern": "(a"}, ".pattern"),
        ({"type": "regex", "pattern": "(?!b)a{101}"}, ".pattern"),
        ({"type": "regex", "pattern": "a(?!b)b"}, ".pattern"),
        ({**ANY, "excludes": ["a", ""]}, ".excludes[1]"),
        ({**ANY, "excludes": "a"}, ".excludes"),
        ({**ANY, "max_chars": -1}, ".max_chars"),
        ({**ANY, "max_chars": 1.5}, ".max_chars"),
        ({**NULL, "any_order": 1}, ".any_order"),
        ({**NULL, "max_whitespace_cnt": True}, ".max_whitespace_cnt"),
        ({"type": "json_schema", "json_schema": "{}"}, ".json_schema"),
        ({"type": "json_schema", "json_schema": {"type": "pear"}}, ".json_schema#/type"),
        ({"type": "star"}, ""),
        ({"type": "repeat", "content": ANY, "min": 2, "max": 1}, ".max"),
        ({"type": "repeat", "content": ANY, "min": 0, "max": 10_001}, ".max"),
        ({"type": "repeat", "content": ANY, "min": 0}, ""),
        ({"type": "tag", "begin": "a", "content": ANY}, ""),
        ({"type": "tag", "begin": "a", "content": ANY, "end": []}, ".end"),
        ({"type": "tag", "begin": "a", "content": ANY, "end": ["a", 1]}, ".end[1]"),
        (triggered([], "a"), ".triggers"),
        (triggered(["a", "a"], "a"), ".triggers[1]"),
        (triggered(["a"], "b"), ".tags[0].begin"),
        (triggered(["a", "b"], "a"), ".triggers[1]"),
        (triggered(["a", "xa"], "a", "xa"), ".triggers[1]"),
        (triggered(["<a"], "<a", excludes=["<"]), ".triggers[0]"),
        (triggered(["a"], "a", at_least_one="yes"), ".at_least_one"),
        ({"type": "triggered_tags", "triggers": ["a"], "tags": [ANY]}, ".tags[0].type"),
        ({"type": "tags_with_separator", "tags": [TAG]}, ""),
        ({"type": "dispatch", "rules": []}, ".rules"),
        ({"type": "dispatch", "rules": [["a"]]}, ".rules[0]"),
        ({"type": "dispatch", "rules": [["a", ANY], ["a", ANY]]}, ".rules[1][0]"),
        ({"type": "dispatch", "rules": [["a", {"type": "x"}]]}, ".rules[0][1].type"),
    ],
)
def test_what_is_no_format_is_refused(wanted: object, path: str):
    assert refusal_of({"type": "structural_tag", "format": wanted}).path == f"format{path}"


@pytest.mark.parametrize(
    ("wanted", "path"),
    [
        ({"type": "grammar", "grammar": 'root ::= "a"'}, ".type"),
        ({"type": "token", "token": 3}, ".type"),
        ({"type": "exclude_token"}, ".type"),
        ({"type": "any_tokens"}, ".type"),
        ({"type": "token_triggered_tags"}, ".type"),
        ({"type": "token_dispatch"}, ".type"),
        ({"type": "qwen_xml_parameter", "json_schema": {}}, ".type"),
        ({**NULL, "style": "glm_xml"}, ".style"),
        ({**NULL, "any_order": True}, ".any_order"),
        ({**NULL, "excludes": ["a"]}, ".excludes"),
        ({**ANY, "max_tokens": 3}, ".max_tokens"),
        ({**TAG, "type": "tag", "begin": {"type": "token", "token": 3}}, ".begin"),
        ({**TAG, "type": "tag", "end": {"type": "token", "token": 3}}, ".end"),
    ],
)
def test_what_cant_be_enforced_is_refused(wanted: Node, path: str):
    assert refusal_of({"format": row(fixed("a"), wanted)}).path == f"format.elements[1]{path}"


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (row(ANY, NULL), "can go on with 'n'"),
        (row(expression("a+|(?!a{17,20}n)a+nb"), NULL), "can go on with 'n'"),
        (row({"type": "star", "content": fixed("n")}, NULL), "can go on with 'n'"),
        (row(fixed("v"), NUMBER, fixed("0")), "what follows may be more of it"),
        (row(NUMBER, {"type": "optional", "content": fixed(",")}, NUMBER), "more of it"),
        ({"type": "plus", "content": NUMBER}, "more of it"),
        (either(row(NULL, fixed("x"), NULL), row(NULL, fixed("xnot"))), "go on with 'n'"),
        (either(row(NUMBER, fixed("x")), row(EVEN, fixed("y"))), "of another schema"),
        ({"type": "or", "elements": [row(fixed("a"), NULL), fixed("anchor")]}, "go on with 'n'"),
    ],
)
def test_values_whose_ends_cant_be_told_are_refused(wanted: Node, message: str):
    refusal = refusal_of({"format": wanted})

    assert refusal.path.endswith(".json_schema")
    assert message in refusal.message


@pytest.mark.parametrize(
    ("document", "path"),
    [
        ([], ""),
        ({}, "format"),
        ({"type": "json_schema", "format": ANY}, "type"),
        ({"format": ANY, "name": "x"}, "name"),
        ({"structures": [], "triggers": ["<"]}, "structures"),
        ({"structures": [{"begin": "<", "end": ">"}], "triggers": ["<"]}, "structures[0]"),
        (
            {"structures": [{"begin": "<", "schema": 3, "end": ">"}], "triggers": ["<"]},
            "structures[0].schema",
        ),
        (
            {"structures": [{"begin": "<", "schema": {"type": 3}, "end": ">"}], "triggers": ["<"]},
            "structures[0].schema#/type",
        ),
        ({"structures": [{"begin": "<", "schema": {}, "end": ">"}]}, "triggers"),
    ],
)
def test_what_is_no_structural_tag_is_refused(document: object, path: str):
    assert refusal_of(document).path == path
