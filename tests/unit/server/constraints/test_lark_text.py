"""Languages as terminals: what the library needs to see in them, and how characters are spelt."""

import re

import pytest

from antiphon_server.constraints.languages.derivatives import is_empty
from antiphon_server.constraints.languages.lark_text import plain_text, string_texts
from antiphon_server.constraints.languages.open_parts import open_parts
from antiphon_server.constraints.languages.patterns import searched
from antiphon_server.constraints.languages.terms import (
    ANY_TEXT,
    Term,
    both,
    choice,
    complement,
    literal,
    literals,
    of_length,
)


def expression_of(text: str) -> re.Pattern[str]:
    """The text of a terminal that is one regular expression, as Python's."""
    assert text.startswith("/")
    assert text.endswith("/")
    spelt = re.sub(r"\\x\{([0-9A-F]+)\}", lambda code: re.escape(chr(int(code[1], 16))), text[1:-1])
    return re.compile(spelt)


def test_a_character_that_needs_an_escape_has_one_spelling():
    (text,) = string_texts(literal('a"\n\x01é/'))
    assert expression_of(text).fullmatch('"a\\"\\n\\u0001é/"')


def test_a_complement_stays_outermost_with_the_quotes_inside():
    (text,) = string_texts(both(complement(literals(["a", "b"])), of_length(0, 9)))
    included, excluded = text.split(" & ")
    assert expression_of(included).fullmatch('"xyz"')
    assert excluded.startswith("~(/")
    assert expression_of(excluded[2:-1]).fullmatch('"a"')


def test_all_that_is_left_out_is_in_one_complement():
    (text,) = string_texts(both(complement(literal("aa")), complement(searched("^b"))))
    assert text.count("~") == 1


def test_a_union_with_complements_is_several_terminals():
    union = choice(both(complement(literal("aa")), of_length(2, 3)), searched("x.*y"))
    assert len(string_texts(union)) > 1


def test_what_is_searched_for_has_a_needless_part_that_always_lets_any_text_go_on():
    first, second = string_texts(searched("[0-9]{4}"))
    assert expression_of(first).fullmatch('"in 2024 "')
    assert expression_of(second).fullmatch('"in \ue0002024 "')
    assert not expression_of(second).fullmatch('"in 2024 "')


def test_what_is_excluded_by_a_pattern_has_a_needless_part_that_any_text_may_begin():
    names = searched("^[a-z]+$")
    first, second = string_texts(both(complement(names), complement(literals(["Id"]))))
    assert first.count("~") == 1
    assert expression_of(second).fullmatch('"any thing\ue000"')
    assert not expression_of(second).fullmatch('"anything"')


@pytest.mark.parametrize("excluded", [searched("^[^a-z]+$"), searched("x"), literals(["a", "b"])])
def test_what_the_mark_may_be_in_or_the_library_looks_through_has_no_such_part(excluded: Term):
    assert len(string_texts(complement(excluded))) == 1


@pytest.mark.parametrize(
    ("pattern", "bounds", "longest"),
    [
        (r"^(?:\S+\s+){0,3}\S+$", (0, None), 7),
        (r"^\S+(\s+\S+){0,3}$", (1, None), 7),
        (r"^(?:\S+\s+){0,3}\S+$", (2, 5), 5),
        (r"^(?:\S+\s+)*\S+$", (0, 9), 9),
    ],
)
def test_so_many_words_have_needless_parts_that_any_text_may_begin_while_it_is_short(
    pattern: str, bounds: tuple[int, int | None], longest: int
):
    whole, word, words = string_texts(both(searched(pattern), of_length(*bounds)))
    assert " & " in whole or bounds[1] is None
    assert expression_of(word).fullmatch('"abc\ue000"')
    assert not expression_of(word).fullmatch('"a c\ue000"')
    alternating = "a b c d e f"
    assert expression_of(words).fullmatch(f'"{alternating[: longest - 1]}\ue000"')
    assert not expression_of(words).fullmatch(f'"{alternating[:longest]}\ue000"')
    assert not expression_of(words).fullmatch('" b\ue000"')


def test_a_part_of_words_is_never_more_than_the_words():
    words = searched(r"^(?:\S+\s+){0,3}\S+$")
    parts = [*open_parts(words)]
    assert parts
    for part in parts:
        assert is_empty(both(part, complement(words)), max_states=1000)


def test_any_text_needs_no_part_more():
    assert len(string_texts(ANY_TEXT)) == 1


def test_blanks_before_the_quote_stand_in_every_operand():
    (text,) = string_texts(complement(literal("aa")), before="/ {0,3}/ ")
    assert text.count("/ {0,3}/ ") == 2


def test_a_text_outside_of_json_is_spelt_as_it_is():
    assert expression_of(plain_text(literal('a"\n/'))).fullmatch('a"\n/')
