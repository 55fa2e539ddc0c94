"""Grammars that take more memory the more outputs make of them: it is counted, and bounded."""

import gc
import random
from collections.abc import Sequence

import msgspec
import numpy as np
import pytest

from antiphon_engine.api.errors import ErrorReason
from antiphon_engine.api.grammar import Grammar, GrammarBackend
from antiphon_engine.grammar.backends import Backends
from antiphon_engine.grammar.base import CompiledGrammar, GrammarError, Matcher, mask_words
from antiphon_engine.grammar.vocabulary import Vocabulary
from support.grammars import regex
from support.process_figures import allocated_bytes

VOCABULARY = Vocabulary(
    tokens=(
        *(bytes([value]) for value in range(256)),
        *(bytes([first, second]) for first in range(97, 123) for second in range(97, 123)),
    ),
    control_ids=frozenset(),
)
LLGUIDANCE = GrammarBackend.LLGUIDANCE
GROWING = "|".join(
    f"[a-z]*[{letters}][a-z]{{200}}{end}" for end, letters in enumerate(("aeiou", "a-j", "f-r"))
)
"""Whatever is said last matters, so its lexer never comes to an end."""
WIDE = "|".join(
    f"[a-z]*[{letters}][a-z]{{200}}{end}"
    for end, letters in enumerate(("aeiou", "a-j", "f-r", "c-p", "k-z", "b-h"))
)
"""The same, and more of it for each mask."""

RULES = "\n".join(
    [
        'root ::= "NAME"? (' + "|".join(f"r{number}" for number in range(100)) + ")*",
        *(
            f'r{number} ::= [{chr(97 + number % 12)}-z]+ [a-f]{{2,{3 + number % 5}}} "{number}"'
            for number in range(100)
        ),
    ]
)


class Walk:
    """An output of random letters."""

    def __init__(
        self,
        backends: Backends,
        compiled: CompiledGrammar,
        seed: int,
        name: GrammarBackend = LLGUIDANCE,
    ) -> None:
        self.matcher: Matcher = compiled.matcher()
        self.token_ids: list[int] = []
        self._backend = backends[name]
        self._source = random.Random(seed)
        self._masks = np.zeros((1, mask_words(VOCABULARY.size)), np.int32)

    def allowed(self) -> Sequence[int]:
        """Returns the tokens that may come next. Raises GrammarError."""
        (error,) = self._backend.fill([self.matcher], self._masks, [0])
        if error is not None:
            raise error
        bits = np.unpackbits(self._masks.view(np.uint8), bitorder="little")
        return np.nonzero(bits[: VOCABULARY.size])[0].tolist()

    def go_on(self, num_tokens: int) -> None:
        """Draws tokens, and has the mask made before each. Raises GrammarError."""
        for _ in range(num_tokens):
            # Digits would end it.
            token_id = self._source.choice([i for i in self.allowed() if i >= ord("a")])
            self.matcher.accept(token_id)
            self.token_ids.append(token_id)


@pytest.mark.parametrize(
    "grammar",
    [
        regex(f"{GROWING}|NAME", LLGUIDANCE),
        Grammar(backend=GrammarBackend.XGRAMMAR, text=RULES),
    ],
    ids=lambda grammar: grammar.backend.value,
)
def test_grammars_count_for_what_outputs_have_made_of_them(grammar: Grammar) -> None:
    backends = Backends(VOCABULARY)
    compiled = [
        backends.compile(msgspec.structs.replace(grammar, text=grammar.text.replace("NAME", name)))
        for name in ("W", "X", "Y", "Z")
    ]
    for number, each in enumerate(compiled):
        Walk(backends, each, number, grammar.backend).go_on(60)
    gc.collect()
    num_bytes, grown_bytes = sum(each.size_bytes for each in compiled), allocated_bytes()

    del each
    compiled.clear()
    gc.collect()

    taken_bytes = grown_bytes - allocated_bytes()
    assert taken_bytes > 1 << 20  # Or it shows nothing.
    assert taken_bytes < 1.5 * num_bytes


def test_what_is_kept_of_a_grammar_is_small_however_long_its_outputs_are() -> None:
    backends = Backends(VOCABULARY)
    compiled = backends.compile(regex(GROWING, LLGUIDANCE))
    walk = Walk(backends, compiled, 1)

    walk.go_on(400)
    grown_bytes = allocated_bytes()
    del walk
    gc.collect()

    assert compiled.size_bytes < 1 << 20, compiled.size_bytes
    assert allocated_bytes() < grown_bytes - (4 << 20)


def test_outputs_go_on_alike_whatever_becomes_of_their_lexer() -> None:
    backends = Backends(VOCABULARY)
    grammar = regex(f"qu({GROWING})", LLGUIDANCE)
    compiled = backends.compile(grammar)
    long, short = Walk(backends, compiled, 1), Walk(backends, compiled, 2)
    short.go_on(3)

    long.go_on(200)

    alone = Walk(backends, backends.compile(grammar), 2)
    alone.go_on(3)
    assert alone.token_ids == short.token_ids
    assert short.allowed() == alone.allowed()
    short.go_on(40)
    alone.go_on(40)
    assert short.token_ids == alone.token_ids


def test_an_output_that_is_taken_up_again_finds_out_at_once_what_took_it_many_masks() -> None:
    backends = Backends(VOCABULARY)
    compiled = backends.compile(regex(WIDE, LLGUIDANCE))
    walk = Walk(backends, compiled, 1)
    walk.go_on(90)
    token_ids, allowed = walk.token_ids, walk.allowed()
    del walk
    gc.collect()
    again = Walk(backends, compiled, 2)

    for token_id in token_ids:
        again.matcher.accept(token_id)

    assert again.allowed() == allowed


def test_only_what_grows_beyond_the_room_fails_and_says_so() -> None:
    backends = Backends(VOCABULARY, large_bytes=1 << 20)
    small = backends.compile(regex("[a-z]{3,400}", LLGUIDANCE))
    large = Walk(backends, backends.compile(regex(GROWING, LLGUIDANCE)), 1)
    other = Walk(backends, small, 2)
    other.go_on(5)

    with pytest.raises(GrammarError) as raised:
        large.go_on(400)

    assert raised.value.reason is ErrorReason.OVERLOADED
    assert raised.value.metadata == {"limit_bytes": str(1 << 20)}
    assert raised.value.retry_delay_s is not None
    other.go_on(100)
    Walk(backends, small, 3).go_on(100)


def test_time_of_compiling_again_is_told_apart() -> None:
    backends = Backends(VOCABULARY)
    walk = Walk(backends, backends.compile(regex(GROWING, LLGUIDANCE)), 1)
    assert walk.matcher.excused_s == 0

    walk.go_on(60)

    assert 0 < walk.matcher.excused_s < float("inf")
