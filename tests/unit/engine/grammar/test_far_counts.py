"""Outputs that are long within one terminal: each place of a count is a state of the lexer's."""

import json

import numpy as np
import pytest

from antiphon_engine.api.errors import ErrorReason
from antiphon_engine.api.grammar import Grammar, GrammarBackend
from antiphon_engine.grammar.backends import Backends
from antiphon_engine.grammar.base import GrammarError, Matcher, mask_words
from antiphon_engine.grammar.vocabulary import Vocabulary
from antiphon_server.constraints.json_schema import PlanLimits, plan_schema
from support.grammar_walks import allowed_texts, token_of
from support.grammars import regex

LLGUIDANCE = GrammarBackend.LLGUIDANCE
BACKENDS = Backends(
    Vocabulary(
        tokens=(
            *(bytes([value]) for value in range(256)),
            *(b"x" * size for size in (4, 8, 15, 16)),
        ),
        control_ids=frozenset(),
    )
)
LONG = b"x" * 16


def string(**keywords: object) -> Grammar:
    text = json.dumps({"type": "string", **keywords})
    return plan_schema(text, max_blank=0, limits=PlanLimits())


WORDS = string(pattern="^[a-z]+( [a-z]+)*$", maxLength=6000)
SOMETHING = string(pattern=r"\S", maxLength=6000)


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


@pytest.mark.parametrize("grammar", [WORDS, SOMETHING], ids=["words", "something"])
@pytest.mark.parametrize("masked", [True, False], ids=["drawn", "taken up again"])
def test_a_text_may_be_as_long_as_its_bound_and_no_longer(grammar: Grammar, masked: bool) -> None:
    matcher = BACKENDS.compile(grammar).matcher()
    matcher.accept(ord('"'))

    follow(matcher, 5985, masked=masked)

    assert b"x" * 15 in allowed_texts(BACKENDS, LLGUIDANCE, matcher)
    assert LONG not in allowed_texts(BACKENDS, LLGUIDANCE, matcher)
    matcher.accept(token_of(BACKENDS, b"x" * 15))
    assert allowed_texts(BACKENDS, LLGUIDANCE, matcher) == {b'"'}


@pytest.mark.parametrize("expression", ["(x{1,50}y?){1,50}", "(x{1,20}y?){1,100}"])
def test_an_output_that_can_not_be_followed_fails_as_too_complex(expression: str) -> None:
    compiled = BACKENDS.compile(regex(expression, LLGUIDANCE))
    other = compiled.matcher()

    with pytest.raises(GrammarError) as raised:
        follow(compiled.matcher(), 3000, masked=True)

    assert raised.value.reason is ErrorReason.CONSTRAINT_TOO_COMPLEX
    follow(other, 16, masked=False)


@pytest.mark.parametrize(
    "expression", ["((x{1,500}){1,500}){1,500}", "(x{1,100}){1,20}(x{1,30}y?){1,30}"]
)
@pytest.mark.parametrize("masked", [True, False], ids=["drawn", "taken up again"])
def test_an_output_that_takes_too_many_steps_is_told_so_when_it_is_taken_up_again_too(
    expression: str, masked: bool
) -> None:
    compiled = BACKENDS.compile(regex(expression, LLGUIDANCE))

    with pytest.raises(GrammarError) as raised:
        follow(compiled.matcher(), 600, masked=masked)

    assert raised.value.reason is ErrorReason.CONSTRAINT_TOO_COMPLEX
