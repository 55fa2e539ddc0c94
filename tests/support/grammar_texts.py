"""Whole texts through a grammar, byte by byte, with the libraries that enforce it for real."""

import random
from functools import cache

import numpy as np

from antiphon_engine.api.grammar import Grammar
from antiphon_engine.grammar.backends import Backends
from antiphon_engine.grammar.base import CompiledGrammar, GrammarError, Matcher, mask_words
from antiphon_engine.grammar.vocabulary import Vocabulary

# A token is a byte, so that every text has one split only and no tokenizer is needed.
_NUM_BYTES = 256
_CLOSING = frozenset(b'"}]')


class Texts:
    """The texts of one grammar."""

    def __init__(self, grammar: Grammar) -> None:
        self._backend = _backends()[grammar.backend]
        self._compiled: CompiledGrammar = self._backend.compile(grammar)
        self._masks = np.zeros((1, mask_words(_NUM_BYTES)), dtype=np.int32)

    def has(self, text: str) -> bool:
        """Returns whether the grammar produces a text."""
        matcher = self._compiled.matcher()
        try:
            for byte in text.encode():
                matcher.accept(byte)
        except GrammarError:
            return False
        return matcher.may_end()

    def draw(self, chooser: random.Random, *, max_bytes: int) -> str | None:
        """Returns what comes of drawing allowed bytes until the end; None where that is far off.

        What closes strings and brackets is favoured, and so is the end.
        """
        matcher, drawn = self._compiled.matcher(), bytearray()
        while len(drawn) < max_bytes:
            allowed = self._allowed(matcher)
            may_end = allowed[-1:] == [_NUM_BYTES]
            if may_end and (len(allowed) == 1 or chooser.random() < 0.5):
                return drawn.decode()
            choices = [each for each in allowed if each < _NUM_BYTES]
            assert choices, f"nothing may follow {bytes(drawn)!r}, and it is no end"
            closing = [each for each in choices if each in _CLOSING]
            drawn.append(chooser.choice(closing if closing and chooser.random() < 0.4 else choices))
            matcher.accept(drawn[-1])
        return None

    def _allowed(self, matcher: Matcher) -> list[int]:
        (fault,) = self._backend.fill([matcher], self._masks, [0])
        if fault is not None:
            raise fault
        bits = np.unpackbits(self._masks[0].view(np.uint8), bitorder="little")
        return [int(each) for each in np.flatnonzero(bits[: _NUM_BYTES + 1])]


@cache
def _backends() -> Backends:
    tokens = tuple(bytes([value]) for value in range(_NUM_BYTES))
    return Backends(Vocabulary(tokens=tokens, control_ids=frozenset()))
