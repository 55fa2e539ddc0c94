"""Matchers beside a naive model: a language is a set of words, and a token may come if some word
goes on with it."""

import itertools
import json
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon_engine.api.grammar import Grammar, GrammarBackend
from antiphon_engine.grammar.backends import Backends
from antiphon_engine.grammar.base import GrammarError, Matcher, mask_words
from antiphon_engine.grammar.vocabulary import Vocabulary
from support.grammars import regex, schema

LETTERS = "abé"
TOKENS = tuple(
    "".join(letters).encode()
    for length in (1, 2, 3)
    for letters in itertools.product(LETTERS, repeat=length)
)
BYTES = (b"\xc3", b"\xa9", b"\xa9a", b'"', b'"a', b'a"', b"control")
VOCABULARY = Vocabulary(
    tokens=(*TOKENS, *BYTES, b"", b""), control_ids=frozenset({len(TOKENS) + len(BYTES) - 1})
)

words = st.sets(st.text(LETTERS, max_size=6), min_size=1, max_size=6)


@pytest.fixture(scope="module")
def backends() -> Backends:
    return Backends(VOCABULARY)


Language = tuple[Grammar, set[bytes]]
"""A grammar and all that satisfies it."""


def as_words(spoken: set[str], backend: GrammarBackend) -> Language:
    text = "|".join(f"({word})" if word else "()" for word in sorted(spoken))
    return regex(text, backend), {word.encode() for word in spoken}


def as_strings(spoken: set[str], backend: GrammarBackend) -> Language:
    said = [json.dumps(word, ensure_ascii=False) for word in sorted(spoken)]
    if backend is GrammarBackend.LLGUIDANCE:
        grammar = schema({"enum": sorted(spoken)}, backend)
    else:
        rule = " | ".join(json.dumps(text, ensure_ascii=False) for text in said)
        grammar = Grammar(backend=backend, text=f"root ::= {rule}")
    return grammar, {text.encode() for text in said}


def allowed_by(language: set[bytes], said: bytes) -> set[int]:
    """The ids that may come behind `said`; the vocabulary's size stands for the end."""
    allowed = {
        token_id
        for token_id, token in enumerate(VOCABULARY.tokens)
        if token
        and token_id not in VOCABULARY.control_ids
        and any(word.startswith(said + token) for word in language)
    }
    return allowed | ({VOCABULARY.size} if said in language else set())


def allowed_of(backends: Backends, backend: GrammarBackend, matcher: Matcher) -> set[int]:
    masks = np.full((1, mask_words(VOCABULARY.size)), 0x55, np.int32)
    assert backends[backend].fill([matcher], masks, [0]) == [None]
    return set(np.flatnonzero(np.unpackbits(masks[0].view(np.uint8), bitorder="little")).tolist())


@pytest.mark.parametrize("way", list(itertools.product(GrammarBackend, [as_words, as_strings])))
@settings(deadline=None, max_examples=40)
@given(spoken=words, choices=st.lists(st.integers(0, 1 << 16), max_size=10), back=st.integers(0, 9))
def test_a_mask_allows_what_some_word_goes_on_with(
    backends: Backends,
    way: tuple[GrammarBackend, Callable[[set[str], GrammarBackend], Language]],
    spoken: set[str],
    choices: list[int],
    back: int,
) -> None:
    backend, say = way
    grammar, language = say(spoken, backend)
    matcher = backends.compile(grammar).matcher()
    path: list[int] = []

    for choice in choices:
        said = b"".join(VOCABULARY.tokens[token_id] for token_id in path)
        allowed = allowed_by(language, said)
        assert allowed_of(backends, backend, matcher) == allowed
        assert matcher.may_end() == (VOCABULARY.size in allowed)
        refused = choice % VOCABULARY.size
        if refused not in allowed:
            with pytest.raises(GrammarError):
                matcher.fork().accept(refused)
        going_on = sorted(allowed - {VOCABULARY.size})
        if not going_on:
            break
        path.append(going_on[choice % len(going_on)])
        matcher.accept(path[-1])

    kept = path[: max(0, len(path) - back)]
    matcher.rollback(len(path) - len(kept))
    replayed = backends.compile(grammar).matcher()
    for token_id in kept:
        replayed.accept(token_id)
    assert allowed_of(backends, backend, matcher) == allowed_of(backends, backend, replayed)
    said = b"".join(VOCABULARY.tokens[token_id] for token_id in kept)
    assert allowed_of(backends, backend, matcher) == allowed_by(language, said)
