"""Languages as terminals: what the library needs to see in them, and how characters are spelt."""

import re

from antiphon_server.constraints.languages.lark_text import plain_text, string_texts
from antiphon_server.constraints.languages.patterns import searched
from antiphon_server.constraints.languages.terms import (
    ANY_TEXT,
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


def test_any_text_needs_no_part_more():
    assert len(string_texts(ANY_TEXT)) == 1


def test_blanks_before_the_quote_stand_in_every_operand():
    (text,) = string_texts(complement(literal("aa")), before="/ {0,3}/ ")
    assert text.count("/ {0,3}/ ") == 2


def test_a_text_outside_of_json_is_spelt_as_it_is():
    assert expression_of(plain_text(literal('a"\n/'))).fullmatch('a"\n/')
