"""Structural tags: which texts each format has, and that both readings agree on them."""

import json

import pytest

from antiphon_server.constraints.json_schema import PlanLimits
from antiphon_server.constraints.refusals import ConstraintTooComplexError
from antiphon_server.constraints.structural_tags import plan_tag
from support.tag_texts import TagTexts, check_texts

Node = dict[str, object]

ANY: Node = {"type": "any_text"}


def fixed(text: str) -> Node:
    return {"type": "const_string", "value": text}


def value(schema: object, **options: object) -> Node:
    return {"type": "json_schema", "json_schema": schema, **options}


def expression(pattern: str) -> Node:
    return {"type": "regex", "pattern": pattern}


def row(*elements: Node) -> Node:
    return {"type": "sequence", "elements": elements}


def tag(begin: str, content: Node, end: str | list[str]) -> Node:
    return {"type": "tag", "begin": begin, "content": content, "end": end}


PERSON = value(
    {
        "type": "object",
        "properties": {"age": {"type": "integer", "minimum": 0}},
        "required": ["age"],
        "additionalProperties": False,
    }
)
CALLS: Node = {
    "type": "triggered_tags",
    "triggers": ["<f="],
    "tags": [
        {"begin": "<f=one>", "content": PERSON, "end": "</f>"},
        {"begin": "<f=two>", "content": ANY, "end": ["</f>", "</two>"]},
    ],
}
ONE, TWO = '<f=one>{"age":1}</f>', "<f=two>so </two>"


def test_fixed_texts_are_themselves():
    check_texts(fixed('a\n"é'), inside=['a\n"é'], outside=["", "a\n", 'a\n"éx'])
    check_texts(fixed(""), inside=[""], outside=["a"])


def test_free_text_keeps_out_what_is_excluded_and_to_its_length():
    check_texts(ANY, inside=["", "a\nb\u2028é日"], outside=[])
    check_texts(
        {**ANY, "excludes": ["<b", "zz"]}, inside=["", "<<a", "z"], outside=["a<b", "zz", "azzb"]
    )
    check_texts({**ANY, "max_chars": 2}, inside=["", "é日"], outside=["é日a"])


def test_expressions_match_their_piece_as_a_whole():
    wanted = row(fixed("<"), expression("^a+$|b(?!c)."), fixed(">"))
    check_texts(wanted, inside=["<aa>", "<bx>"], outside=["<>", "<bc>", "<aab>"])


def test_values_are_as_their_schema_says():
    wanted = row(fixed("v="), value({"type": "array", "items": {"type": "integer"}}), fixed("]"))
    check_texts(wanted, inside=["v=[1,-2]]", "v=[]]"], outside=["v=[1,]]", "v=[1]", "v= []]"])


def test_a_schema_of_its_own_has_its_own_definitions():
    nested = {
        "$defs": {"n": {"type": "array", "items": {"$ref": "#/$defs/n"}}},
        "$ref": "#/$defs/n",
    }
    check_texts(row(value(nested), fixed("."), value({"const": 0.5})),
                inside=["[[],[[]]].0.5"], outside=["[1].0.5", "[].1"])  # fmt: skip


def test_numbers_end_where_no_digit_follows():
    wanted = row(value({"type": "number"}), fixed(";"), value({"multipleOf": 3, "type": "integer"}))
    check_texts(wanted, inside=["1.5;9", "-2e3;0"], outside=["1.5;8", ";9", "1.;9"])


def test_any_of_the_elements_will_do():
    wanted = {"type": "or", "elements": [fixed("a"), PERSON, row(PERSON, fixed("!"))]}
    check_texts(wanted, inside=["a", '{"age":2}', '{"age":2}!'], outside=["", "a!", '{"age":-2}'])


def test_equal_beginnings_go_on_in_all_their_ways():
    integer, number = value({"type": "integer"}), value({"type": "number"})
    wanted = {"type": "or", "elements": [row(integer, fixed("x")), row(number, fixed("y"))]}
    check_texts(wanted, inside=["1x", "1y", "1.5y"], outside=["1.5x", "1"])


def test_a_text_may_lead_to_a_value_in_one_way_and_to_others_in_another():
    null = value({"type": "null"})
    nulls: Node = {"type": "star", "content": row(null, fixed(","))}
    wanted = {"type": "or", "elements": [row(fixed("a"), null, fixed("x")), row(fixed("a"), nulls)]}
    check_texts(wanted, inside=["a", "anullx", "anull,null,"], outside=["anull,x", "anullx,", ""])


@pytest.mark.parametrize(
    ("kind", "bounds", "counts"),
    [
        ("optional", {}, {0, 1}),
        ("star", {}, {0, 1, 2, 3, 4, 5}),
        ("plus", {}, {1, 2, 3, 4, 5}),
        ("repeat", {"min": 2, "max": 4}, {2, 3, 4}),
        ("repeat", {"min": 3, "max": -1}, {3, 4, 5}),
        ("repeat", {"min": 0, "max": 0}, {0}),
    ],
)
def test_repeats_count(kind: str, bounds: Node, counts: set[int]):
    for content, text in (
        (fixed("ab"), "ab"),
        (value({"type": "null"}), "null"),
        ({"type": "or", "elements": [value({"type": "null"}), fixed("-")]}, "-"),
    ):
        wanted = {"type": kind, "content": content, **bounds}
        inside = [text * count for count in range(6) if count in counts]
        check_texts(wanted, inside=inside, outside=[text * n for n in range(6) if n not in counts])


def test_free_text_in_a_tag_stops_at_the_first_of_its_ends():
    wanted = row(tag("<t>", ANY, ["</t>", "</u>"]), fixed("."))
    check_texts(
        wanted, inside=["<t>a</t>.", "<t></u>.", "<t><</t>."], outside=["<t></u></t>.", "<t>."]
    )


def test_free_text_stops_at_the_ends_of_the_innermost_tag_only():
    wanted = tag("(", row(tag("[", ANY, "]"), ANY), ")")
    check_texts(wanted, inside=["([)]])", "([a]b)"], outside=["([a]))", "([a)"])


def test_an_end_that_overlaps_itself_is_found_all_the_same():
    check_texts(tag("", ANY, "aa"), inside=["aa", "aaa", "baa"], outside=["a", "aaaa"])


def test_a_value_may_come_behind_the_end_of_free_text():
    wanted = row(tag("<think>", ANY, "</think>"), expression(r"\s*"), PERSON)
    check_texts(
        wanted,
        inside=['<think>{</think> \n{"age":3}', '<think></think>{"age":3}'],
        outside=['<think>{</think>x{"age":3}', '{"age":3}'],
    )


def test_triggered_tags_come_between_free_text():
    check_texts(
        CALLS,
        inside=["", "a<f", ONE, f"a{ONE}b<{TWO}c", ONE + TWO, "<<f=two></f>"],
        outside=["a<f=", '<f=one>{"age":"x"}</f>', '<f=one>{"age":1}</two>', "<f=three>"],
    )


def test_triggered_tags_may_be_needed_and_may_end_it():
    needed = {**CALLS, "at_least_one": True}
    check_texts(needed, inside=[ONE, f"{TWO}a{ONE}b"], outside=["", "a", f"a{ONE}"])
    last = {**CALLS, "stop_after_first": True}
    check_texts(last, inside=["", "a", ONE, f"a{ONE}"], outside=[f"{ONE}a", ONE + TWO])
    check_texts(
        {**last, "at_least_one": True}, inside=[ONE, TWO], outside=["", f"a{ONE}", ONE + TWO]
    )


def test_triggered_tags_keep_out_what_is_excluded_from_free_text_alone():
    wanted = {**CALLS, "excludes": ["so"]}
    check_texts(wanted, inside=["s", f"s{TWO}"], outside=["so", f"{TWO}so", f"so{ONE}"])


def test_triggered_tags_stop_at_the_end_of_the_tag_around_them():
    check_texts(tag("(", CALLS, ")"), inside=["()", f"(a{ONE})"], outside=[f"(a){ONE})", f"({ONE}"])


def test_tags_stand_with_their_separator():
    tags = [tag("<a>", PERSON, "</a>"), tag("<b>", ANY, "</b>")]
    one, two = '<a>{"age":1}</a>', "<b>,</b>"
    wanted: Node = {"type": "tags_with_separator", "tags": tags, "separator": ","}
    check_texts(wanted, inside=["", one, f"{one},{two},{one}"], outside=[",", one + two, f"{one},"])
    check_texts({**wanted, "at_least_one": True}, inside=[one, f"{two},{two}"], outside=[""])
    check_texts({**wanted, "stop_after_first": True}, inside=["", one], outside=[f"{one},{two}"])
    check_texts({**wanted, "separator": ""}, inside=["", one + two], outside=[f"{one},{two}"])


def test_dispatch_has_its_format_behind_each_pattern():
    wanted = {"type": "dispatch", "rules": [["=>", PERSON], ["::", fixed("x")]], "excludes": ["#"]}
    both = 'a=>{"age":1}b::xc'
    check_texts(wanted, inside=["", "=", both], outside=["=>", "a#", "::y"])
    once = {**wanted, "loop": False}
    check_texts(once, inside=["a", 'a=>{"age":1}'], outside=[both, "::x "])


def test_the_older_form_is_the_same_as_triggered_tags():
    structures = [
        {"begin": "<f=one>", "schema": PERSON["json_schema"], "end": "</f>"},
        {"begin": "<f=two>", "schema": '{"enum": [0.50]}', "end": "</f>"},
    ]
    texts = TagTexts({"type": "structural_tag", "structures": structures, "triggers": ["<f="]})

    assert texts.has(f"a{ONE}b<f=two>0.5</f>")
    assert not texts.has("<f=two>0.6</f>")
    assert not texts.has("<f=")


def test_white_space_is_bounded_by_the_request_and_by_the_format():
    wanted = row(
        value({"type": "array"}), fixed("."), value({"type": "array"}, max_whitespace_cnt=1)
    )
    texts = TagTexts({"type": "structural_tag", "format": wanted}, max_blank=3)

    assert texts.has("[  \n].[ ]")
    assert not texts.has("[    ].[]")
    assert not texts.has("[].[  ]")
    assert not texts.has(" [].[]")


def test_numbers_of_schemas_stay_exact():
    check_texts(
        row(value({"const": 0.1}), fixed(" ")), inside=["0.1 "], outside=["0.10000000000000001 "]
    )


@pytest.mark.parametrize(
    ("wanted", "limit"),
    [
        ({"type": "sequence", "elements": [fixed("a")] * 2100}, "2048"),
        ({"type": "repeat", "min": 0, "max": 9999, "content": value({"type": "null"})}, "4096"),
        (row(expression("[ab]*a[ab]{16}!"), PERSON), "6000"),
    ],
)
def test_what_takes_too_much_is_refused_with_the_limit(wanted: Node, limit: str):
    with pytest.raises(ConstraintTooComplexError) as refusal:
        plan_tag(json.dumps({"format": wanted}), max_blank=0, limits=PlanLimits())

    assert refusal.value.metadata == {"limit": limit}


def test_long_texts_in_front_of_a_value_cost_no_steps():
    thought = tag("<think>", {**ANY, "max_chars": 4000}, "</think>")
    check_texts(
        row(thought, PERSON),
        inside=['<think>a</think>{"age":1}', f'<think>{"a" * 4000}</think>{{"age":1}}'],
        outside=[f'<think>{"a" * 4001}</think>{{"age":1}}'],
    )


def test_nesting_is_bounded():
    text = '{"format":' + '{"type":"star","content":' * 5000

    with pytest.raises(ConstraintTooComplexError) as refusal:
        plan_tag(text, max_blank=0, limits=PlanLimits())

    assert refusal.value.metadata == {"limit": "64"}
