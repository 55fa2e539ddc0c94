"""Languages whose texts lose characters, beside all of their texts where these can be listed."""

import pytest

from antiphon_server.constraints.languages.derivatives import (
    derivative,
    finite_texts,
    matches,
    short_text,
)
from antiphon_server.constraints.languages.patterns import matched
from antiphon_server.constraints.languages.terms import (
    ANY_CHAR,
    ANY_TEXT,
    NOTHING,
    Term,
    both,
    choice,
    complement,
    containing,
    literal,
    literals,
    repeat,
    sequence,
)

BEFORE_MARK = both(sequence(ANY_TEXT, literal("<a>")), complement(containing(literal("<b>"))))


@pytest.mark.parametrize(
    "term",
    [
        ANY_TEXT,
        containing(literals(["<a>", "<b>"])),
        complement(containing(literal("<"))),
        sequence(ANY_TEXT, literal("<a>")),
        choice(sequence(ANY_TEXT, literal("<a>")), sequence(ANY_TEXT, literal("<b>"))),
        BEFORE_MARK,
    ],
)
def test_a_language_that_a_character_leaves_as_it_is_stays_the_same_object(term: Term) -> None:
    assert derivative(term, ord("x")) is term


@pytest.mark.parametrize("text", ["<a>", "x<a>", "<a><a>", "<b>", "<b><a>", "<", ""])
def test_what_is_left_of_a_language_has_the_rest_of_its_texts(text: str) -> None:
    is_in = text.endswith("<a>") and "<b>" not in text

    assert matches(BEFORE_MARK, text) is is_in
    assert not text or matches(derivative(BEFORE_MARK, ord(text[0])), text[1:]) is is_in


@pytest.mark.parametrize(
    ("pattern", "size"),
    [("(on|off)[12]?", 2), ("a{3}b*", 3), ("(abc|x)y", 2), ("", 0), ("[c-f]", 1)],
)
def test_a_short_text_is_one_of_the_shortest(pattern: str, size: int) -> None:
    language = matched(pattern)

    text = short_text(language, 10)

    assert text is not None
    assert (len(text), matches(language, text)) == (size, True)
    texts = finite_texts(language, 100)
    assert texts is None or min(map(len, texts)) == size


def test_no_text_is_told_of_languages_without_a_short_one() -> None:
    assert short_text(NOTHING, 10) is None
    assert short_text(repeat(ANY_CHAR, 11, None), 10) is None
    assert short_text(sequence(literal("abc"), repeat(ANY_CHAR, 8, 8)), 10) is None
    assert short_text(sequence(literal("abc"), repeat(ANY_CHAR, 7, 9)), 10) is not None


def test_what_may_be_empty_is_nothing_beside_any_text():
    maybe = repeat(literal("ab"), 0, 3)
    assert sequence(maybe, ANY_TEXT, maybe, literal("x")) == sequence(ANY_TEXT, literal("x"))
    assert sequence(literal("ab"), ANY_TEXT) != ANY_TEXT
