"""Outputs that are long within one terminal: each place of a count is a state of the lexer's."""

import numpy as np
import pytest

from antiphon_engine.api.errors import ErrorReason
from antiphon_engine.api.grammar import Grammar, GrammarBackend, GrammarKind
from antiphon_engine.grammar.backends import Backends
from antiphon_engine.grammar.base import GrammarError, Matcher, mask_words
from antiphon_engine.grammar.vocabulary import Vocabulary
from support.grammar_walks import END, allowed_texts, token_of
from support.guided_loop import regex

LLGUIDANCE = GrammarBackend.LLGUIDANCE
BACKENDS = Backends(
    Vocabulary(
        tokens=(*(bytes([value]) for value in range(256)), b"x" * 15, b"x" * 16),
        control_ids=frozenset(),
    )
)
LONG = b"x" * 16


def terminal(expression: str) -> Grammar:
    text = f"start: TEXT\nTEXT: {expression}\n"
    return Grammar(backend=LLGUIDANCE, kind=GrammarKind.LARK, text=text)


WORDS = r"/[a-z ]+/ & /(?s:.){0,6000}/"
SOMETHING = r"/(?s:.*)[^ ](?s:.*)/ & /(?s:.){0,6000}/"


def follow(matcher: Matcher, num_characters: int, *, masked: bool) -> None:
    """Says a character again and again, in long tokens where they fit. Raises GrammarError."""
    masks = np.zeros((1, mask_words(BACKENDS.vocabulary.size)), np.int32)
    for _ in range(num_characters // len(LONG)):
        if masked:
            (fault,) = BACKENDS[LLGUIDANCE].fill([matcher], masks, [0])
            if fault is not None:
                raise fault
        matcher.accept(token_of(BACKENDS, LONG))
    for _ in range(num_characters % len(LONG)):
        matcher.accept(ord("x"))


@pytest.mark.parametrize("expression", [WORDS, SOMETHING])
@pytest.mark.parametrize("masked", [True, False], ids=["drawn", "taken up again"])
def test_a_text_may_be_as_long_as_its_bound_and_no_longer(expression: str, masked: bool) -> None:
    matcher = BACKENDS.compile(terminal(expression)).matcher()

    follow(matcher, 5985, masked=masked)

    assert b"x" * 15 in allowed_texts(BACKENDS, LLGUIDANCE, matcher)
    assert LONG not in allowed_texts(BACKENDS, LLGUIDANCE, matcher)
    matcher.accept(token_of(BACKENDS, b"x" * 15))
    assert allowed_texts(BACKENDS, LLGUIDANCE, matcher) == {END}


def test_an_output_that_can_not_be_followed_fails_as_too_complex() -> None:
    compiled = BACKENDS.compile(regex("(x{1,50}y?){1,50}", LLGUIDANCE))
    other = compiled.matcher()

    with pytest.raises(GrammarError) as raised:
        follow(compiled.matcher(), 2000, masked=True)

    assert raised.value.reason is ErrorReason.CONSTRAINT_TOO_COMPLEX
    follow(other, 16, masked=False)
