"""What counts as a schema's text."""

from decimal import Decimal

import pytest

from antiphon_server.constraints.json_schema.document import (
    json_key,
    parse_document,
    plain_number,
    refuse_halves,
)
from antiphon_server.constraints.json_schema.limits import PlanLimits
from antiphon_server.constraints.refusals import (
    ConstraintTooComplexError,
    UnsupportedConstraintError,
)
from support.schema_texts import refusal_of

LIMITS = PlanLimits()


def test_a_fault_in_the_text_is_told_with_its_place():
    with pytest.raises(UnsupportedConstraintError) as refusal:
        parse_document('{\n "type": oops}', LIMITS)
    assert refusal.value.path == "line 2, column 10"


@pytest.mark.parametrize(
    "text", ['{"minimum": 1, "minimum": 2}', '{"minimum": NaN}', '{"a": 1e999}']
)
def test_what_readers_of_json_disagree_on_is_refused(text: str):
    with pytest.raises(UnsupportedConstraintError):
        parse_document(text, LIMITS)


def test_nesting_is_bounded_before_it_is_parsed():
    text = '{"not":' * 100_000
    with pytest.raises(ConstraintTooComplexError) as refusal:
        parse_document(text, LIMITS)
    assert refusal.value.metadata == {"limit": "64"}


def test_brackets_in_strings_are_no_nesting():
    assert parse_document('{"const": "[[[[[[[["}', PlanLimits(max_depth=1)) == {"const": "[" * 8}


def test_numbers_stay_exact():
    assert parse_document("[0.1, 3]", LIMITS) == [Decimal("0.1"), 3]


@pytest.mark.parametrize(
    ("number", "text"), [("1.50", "1.5"), ("1E+3", "1000"), ("-0.0", "0"), ("1e-7", "0.0000001")]
)
def test_a_number_is_written_plainly(number: str, text: str):
    assert plain_number(Decimal(number)) == text


def test_equal_values_have_one_key_and_others_another():
    assert json_key({"a": 1, "b": [Decimal("1.0")]}) == json_key({"b": [1], "a": Decimal(1)})
    assert json_key(value=False) != json_key(0)
    assert json_key("1") != json_key(1)


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ('"\\ud800"', ""),
        ('{"required": ["a", "\\udfff"]}', "/required/1"),
        ('{"properties": {"\\ud800": {}}}', "/properties"),
        ('{"properties": {"a/b": {"enum": [1, "x\\ud83d"]}}}', "/properties/a~1b/enum/1"),
    ],
)
def test_half_of_a_character_is_refused_with_its_place(text: str, path: str):
    with pytest.raises(UnsupportedConstraintError) as refusal:
        refuse_halves(parse_document(text, LIMITS))
    assert refusal.value.path == path


def test_both_halves_are_a_character():
    refuse_halves(parse_document('{"const": "\\ud83d\\ude00"}', LIMITS))


def test_a_refused_pattern_is_shown_as_it_was_written():
    refusal = refusal_of({"pattern": r"(\d+)\1'\n"})

    assert refusal.path == "/pattern"
    assert refusal.message.startswith(r"the pattern '(\d+)\1'\n' can't be enforced: position 5: ")


def test_a_long_text_does_not_hide_what_is_said_about_it():
    refusal = refusal_of({"pattern": "a" * 5_000 + r"(b)\1"})

    assert len(refusal.message) < 200
    assert "aaa…' can't be enforced: position 5003: " in refusal.message


def test_a_text_of_several_lines_is_shown_in_one():
    refusal = refusal_of({"$ref": "other.json#\n\u2028x"})

    assert refusal.message.startswith(r"'other.json#\n\u2028x' isn't in this document")
