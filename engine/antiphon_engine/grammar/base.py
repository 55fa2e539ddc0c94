"""What enforces grammars: backends compile them, matchers follow an output token by token.

Shapes: R rows of a mask table, W words of 32 token bits, as many as the vocabulary and one token
more need: bit `vocabulary.size` of a row says that the output may end there.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from antiphon_engine.api.errors import AntiphonError
from antiphon_engine.api.grammar import Grammar


class GrammarError(AntiphonError):
    """A grammar can't be enforced, or a matcher has left it: its request alone fails."""


class Matcher(Protocol):
    """Where one output stands in its grammar. Used by one thread at a time.

    Token ids are those of the vocabulary that is text; ids of the tokenizer's control tokens are
    accepted where the grammar asks for them by id. End ids are never accepted: they end an output.
    """

    @property
    def excused_s(self) -> float:
        """Processor time that has gone into compiling again so far; infinite while it does.

        May be read by any thread. It is no time that a token has taken.
        """

    def accept(self, token_id: int) -> None:
        """Goes on behind a token.

        Raises:
            GrammarError: the grammar doesn't allow it here, or following it takes too much. The
                matcher is good for nothing any more.
        """

    def rollback(self, num_tokens: int) -> None:
        """Takes back the last tokens that were accepted."""

    def may_end(self) -> bool:
        """Returns whether what was accepted is a whole of the grammar."""

    def fork(self) -> "Matcher":
        """Returns another matcher that stands at the same place."""


class CompiledGrammar(Protocol):
    """A grammar that matchers can be made of. May be used by several threads."""

    @property
    def size_bytes(self) -> int:
        """About how much memory it takes now; it may grow with use."""

    def matcher(self) -> Matcher:
        """Returns a matcher that stands at the grammar's beginning."""


class GrammarBackend(Protocol):
    """A library that enforces grammars. May be used by several threads."""

    def compile(self, grammar: Grammar) -> CompiledGrammar:
        """Compiles a grammar that names this backend.

        Raises:
            GrammarError: UNSUPPORTED_CONSTRAINT or CONSTRAINT_TOO_COMPLEX; says why.
        """

    def fill(
        self, matchers: Sequence[Matcher], masks: NDArray[np.int32], rows: Sequence[int]
    ) -> list[GrammarError | None]:
        """Writes which tokens may come next of each matcher into its row of `masks` [R, W].

        The matchers are this backend's. The lock of the interpreter is let go meanwhile.

        Returns:
            For each matcher None, or why its row is not to be used.
        """


def mask_words(vocabulary_size: int) -> int:
    """Returns W: the words of a mask's row for a model of this vocabulary."""
    return vocabulary_size // 32 + 1


def without_frames(error: GrammarError) -> GrammarError:
    """Returns an error that holds nothing of what was at work when it was raised.

    Its frames hold the output's guide, and the error itself: only the collector, which runs where
    the engine rests, would let go of them.
    """
    return error.with_traceback(None)
