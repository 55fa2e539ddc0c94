"""Grammars that outgrow what a matcher may take: whose fault that is said to be."""

import random

import numpy as np
import pytest

from antiphon_engine.api.errors import ErrorReason
from antiphon_engine.api.grammar import GrammarBackend
from antiphon_engine.grammar.backends import Backends
from antiphon_engine.grammar.base import GrammarError, Matcher, mask_words
from antiphon_engine.grammar.vocabulary import Vocabulary
from support.grammars import regex

NUM_BYTES = 256


@pytest.mark.parametrize(
    "pattern", [r"((x{1,500}){1,500}){1,500}", r"((\p{L}{1,500}){1,500}){1,500}"]
)
def test_a_pattern_that_grows_without_bound_fails_the_output_that_it_grows_with_alone(pattern: str):
    tokens = tuple(bytes([value]) for value in range(NUM_BYTES))
    backends = Backends(Vocabulary(tokens=tokens, control_ids=frozenset()))
    backend = backends[GrammarBackend.LLGUIDANCE]
    grammar = regex(pattern, GrammarBackend.LLGUIDANCE)
    masks = np.zeros((1, mask_words(NUM_BYTES)), dtype=np.int32)
    chooser = random.Random(1)

    compiled = backends.compile(grammar)

    def follow(matcher: Matcher, num_tokens: int) -> None:
        for _ in range(num_tokens):
            (fault,) = backend.fill([matcher], masks, [0])
            if fault is not None:
                raise fault
            matcher.accept(ord("x") if "x" in pattern else chooser.choice(b"abc"))

    begun, at_the_start = compiled.matcher(), compiled.matcher()
    follow(begun, 3)
    backend.fill([begun], masks, [0])
    next_of_begun = masks.copy()
    with pytest.raises(GrammarError) as raised:
        follow(compiled.matcher(), 400)

    assert raised.value.reason is ErrorReason.CONSTRAINT_TOO_COMPLEX
    assert backend.fill([begun], masks, [0]) == [None]
    assert np.array_equal(masks, next_of_begun)
    begun.rollback(1)
    for other in (begun, begun.fork(), at_the_start, compiled.matcher()):
        follow(other, 3)
