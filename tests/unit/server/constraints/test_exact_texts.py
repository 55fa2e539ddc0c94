"""Choices and expressions as grammars: their texts, and no others."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon_server.constraints.choices import plan_choices
from antiphon_server.constraints.expressions import plan_expression
from antiphon_server.constraints.pattern_spelling import compile_pattern
from antiphon_server.constraints.refusals import UnsupportedConstraintError
from support.grammar_texts import Texts

OPTIONS = ["a", "ab", "b\n", '"', "\\d", "/x/", "é", "😀", "\x00", "  ", "\u2028", "a|b"]


def test_choices_are_taken_to_the_byte() -> None:
    texts = Texts(plan_choices([*OPTIONS, "a"]))

    for option in OPTIONS:
        assert texts.has(option)
        assert texts.has(f"{option}x") is (f"{option}x" in OPTIONS)
        assert texts.has(option[:-1]) is (option[:-1] in OPTIONS)


@settings(deadline=None, max_examples=15)
@given(st.lists(st.text(min_size=1, max_size=4), min_size=1, max_size=5), st.text(max_size=4))
def test_choices_are_those_that_were_given(options: list[str], other: str) -> None:
    texts = Texts(plan_choices(options))

    assert all(texts.has(option) for option in options)
    assert texts.has(other) is (other in options)


def test_many_choices_are_no_more_work_than_a_few() -> None:
    options = [f"{number * 7919 % 100_003} of many" for number in range(4096)]

    texts = Texts(plan_choices(options))

    assert texts.has(options[4000])
    assert not texts.has("7 of many")


PIECES = st.sampled_from(["a", "b", "[ab]", "[^a]", ".", r"\d", r"\s", "(a|bb)", "(?=a)", "(?!b)"])
EXPRESSIONS = st.lists(st.tuples(PIECES, st.sampled_from(["", "", "*", "{1,2}"])), max_size=4).map(
    lambda parts: "".join(
        piece + (times if not piece.startswith("(?") else "") for piece, times in parts
    )
)


@settings(deadline=None, max_examples=40)
@given(EXPRESSIONS, st.lists(st.text(alphabet="ab1 \u00a0\n", max_size=4), max_size=12))
def test_expressions_match_what_another_engine_matches(pattern: str, tried: list[str]) -> None:
    other = compile_pattern(pattern)
    try:
        texts = Texts(plan_expression(pattern))
    except UnsupportedConstraintError:  # Nothing matches it.
        assert not any(other.fullmatch(text) for text in tried)
        return
    for text in tried:
        assert texts.has(text) is bool(other.fullmatch(text))


@pytest.mark.parametrize(
    ("pattern", "text", "matches"),
    [
        (r"\w\W\b", "a-", False),
        (r"[\s\d]+", "1\u3000", True),
        (r"\S", "\u2003", False),
        ("^.$", "\u2028", False),
        ("a$", "a\n", False),
        (r"[.$]\/", "$/", True),
        (r"[[]", "[", True),
        (r"(?<x>a)b", "ab", True),
        (r"\d", "\u0664", False),
    ],
)
def test_patterns_are_spelt_as_ecmascript_has_them(pattern: str, text: str, matches: bool) -> None:
    assert bool(compile_pattern(pattern).search(text)) is matches


@pytest.mark.parametrize("pattern", [r"\p{L}", "[^]", "[]", r"\u{61}", r"[\S]", r"\cA"])
def test_what_python_cannot_say_is_not_said(pattern: str) -> None:
    with pytest.raises(ValueError, match=r"class|escape"):
        compile_pattern(pattern)


def test_an_expression_that_is_none_is_refused_by_position() -> None:
    with pytest.raises(UnsupportedConstraintError) as caught:
        plan_expression("ab(c")

    assert caught.value.path == "position 2"
    assert re.search("no \\)", caught.value.message)
