"""The first backend: pushdown automata whose masks are computed when they are first needed."""

import re
from collections.abc import Sequence
from typing import cast

import numpy as np
import xgrammar
from numpy.typing import NDArray

from antiphon_engine.api.errors import ErrorReason
from antiphon_engine.api.grammar import Grammar
from antiphon_engine.grammar.base import GrammarError, Matcher
from antiphon_engine.grammar.vocabulary import Vocabulary

_RULE_CACHE_BYTES = 64 << 20
"""What masks may take that grammars share."""
_UNCOUNTED = 3
"""Measured: what a grammar takes with its tables, as a multiple of what the library counts."""
_NEVER_TEXT = b"\xff"
"""No text has this byte: a token that begins with it is met by its id alone."""
_LOG_PLACE = re.compile(r"^\[[^\]]*\] \S+:\d+: (Check failed: \([^)]*\)+ is false: )?")

_FAULTS = (RuntimeError, ValueError, TypeError, OverflowError, MemoryError)
"""What the library raises, all of it from native code."""


class XgrammarMatcher:
    """See Matcher."""

    excused_s = 0.0
    """See Matcher."""

    def __init__(self, matcher: xgrammar.GrammarMatcher) -> None:
        self.matcher = matcher

    def accept(self, token_id: int) -> None:
        """See Matcher."""
        try:
            accepted = self.matcher.accept_token(token_id)
        except _FAULTS as error:
            raise _internal(error) from error
        if not accepted:
            raise GrammarError(
                ErrorReason.INTERNAL, f"Token {token_id} was drawn and the grammar has no place."
            )

    def rollback(self, num_tokens: int) -> None:
        """See Matcher."""
        self.matcher.rollback(num_tokens)

    def may_end(self) -> bool:
        """See Matcher."""
        return bool(self.matcher.is_completed())

    def fork(self) -> "XgrammarMatcher":
        """See Matcher."""
        return XgrammarMatcher(self.matcher.fork())


class XgrammarCompiled:
    """See CompiledGrammar."""

    def __init__(self, compiled: xgrammar.CompiledGrammar) -> None:
        self._compiled = compiled

    @property
    def size_bytes(self) -> int:
        """See CompiledGrammar."""
        return _UNCOUNTED * int(self._compiled.memory_size_bytes)

    def matcher(self) -> XgrammarMatcher:
        """See CompiledGrammar."""
        return XgrammarMatcher(xgrammar.GrammarMatcher(self._compiled))


class XgrammarBackend:
    """See GrammarBackend."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        end_id = vocabulary.size
        tokens = [
            _NEVER_TEXT + token if token_id in vocabulary.control_ids else token
            for token_id, token in enumerate(vocabulary.tokens)
        ]
        info = xgrammar.TokenizerInfo(
            [*tokens, b""],
            xgrammar.VocabType.RAW,
            vocab_size=vocabulary.size + 1,
            stop_token_ids=[end_id],
        )
        self._compiler = xgrammar.GrammarCompiler(
            info,
            max_threads=1,
            cache_limit_bytes=_RULE_CACHE_BYTES,
            enable_dynamic_compilation=True,
        )
        self._last_word = np.int32((1 << end_id % 32 + 1) - 1 if end_id % 32 < 31 else -1)
        self._batch = xgrammar.BatchGrammarMatcher(max_threads=1)

    def compile(self, grammar: Grammar) -> XgrammarCompiled:
        """See GrammarBackend."""
        try:
            return XgrammarCompiled(self._compiler.compile_grammar(grammar.text))
        except _FAULTS as error:
            raise GrammarError(ErrorReason.UNSUPPORTED_CONSTRAINT, _text(error)) from error

    def fill(
        self, matchers: Sequence[Matcher], masks: NDArray[np.int32], rows: Sequence[int]
    ) -> list[GrammarError | None]:
        """See GrammarBackend."""
        inner = [cast(XgrammarMatcher, matcher).matcher for matcher in matchers]
        try:
            self._batch.batch_fill_next_token_bitmask(inner, masks, list(rows))
        except _FAULTS as error:
            return [_internal(error)] * len(inner)
        # The library leaves the bits behind the end as it likes.
        masks[rows, -1] &= self._last_word
        return [None] * len(inner)


def _internal(error: BaseException) -> GrammarError:
    return GrammarError(ErrorReason.INTERNAL, f"The constraint's matcher failed: {_text(error)}")


def _text(error: BaseException) -> str:
    return _LOG_PLACE.sub("", str(error)).strip()
