"""What one output may say next: its grammar, its reasoning and its ends, as one mask."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from antiphon_engine.api.errors import ErrorReason
from antiphon_engine.api.messages import StopParams
from antiphon_engine.grammar.base import GrammarBackend, GrammarError, Matcher
from antiphon_engine.grammar.thinking import Phase, ThinkingGate
from antiphon_engine.grammar.vocabulary import Vocabulary


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBits:
    """Some tokens as bits of a mask's row."""

    words: NDArray[np.int64]
    """Where in the row, each once."""
    bits: NDArray[np.int32]

    @classmethod
    def of(cls, token_ids: tuple[int, ...], vocabulary: Vocabulary) -> "TokenBits":
        """Returns the bits of those of the ids that the vocabulary has."""
        ids = np.array([i for i in token_ids if 0 <= i < vocabulary.size], np.int64)
        words, places = np.unique(ids // 32, return_inverse=True)
        bits = np.zeros(len(words), np.uint32)
        np.bitwise_or.at(bits, places, np.uint32(1) << (ids % 32).astype(np.uint32))
        return cls(words=words, bits=bits.view(np.int32))

    def clear(self, row: NDArray[np.int32]) -> None:
        """Forbids the tokens."""
        row[self.words] &= ~self.bits

    def set(self, row: NDArray[np.int32]) -> None:
        """Allows the tokens."""
        row[self.words] |= self.bits


@dataclass(frozen=True, slots=True, kw_only=True)
class EndRules:
    """How an output may end, as the request says it. Shared by a request's outputs."""

    vocabulary: Vocabulary
    ends: TokenBits
    ends_and_stops: TokenBits
    min_tokens: int

    @classmethod
    def of(cls, stop: StopParams, vocabulary: Vocabulary) -> "EndRules":
        """Returns the rules of a request."""
        return cls(
            vocabulary=vocabulary,
            ends=TokenBits.of(stop.end_ids, vocabulary),
            ends_and_stops=TokenBits.of((*stop.end_ids, *stop.stop_ids), vocabulary),
            min_tokens=stop.min_output_tokens,
        )

    def apply(self, row: NDArray[np.int32], *, may_end: bool, num_tokens: int) -> None:
        """Allows the ends where the output may end, and only there.

        The least length holds where the grammar leaves anything else to say.
        """
        self.ends.clear(row)
        if num_tokens < self.min_tokens:
            longer = row.copy()
            self.ends_and_stops.clear(longer)
            if longer.any():
                row[:] = longer
                return
        if may_end:
            self.ends.set(row)


class Guide:
    """Follows one output. Goes on by one token at a time; used by one thread at a time."""

    def __init__(
        self,
        rules: EndRules,
        *,
        matcher: Matcher | None,
        backend: GrammarBackend | None,
        gate: ThinkingGate | None,
    ) -> None:
        """`matcher` is `backend`'s; without them only the reasoning is guided."""
        self._rules = rules
        self._matcher = matcher
        self._backend = backend
        self._gate = gate
        self._num_tokens = 0
        self._news: list[int] = []
        self._num_matched = 0
        self.takes_long = False
        """Whether its last mask took so long that a step should not wait for the next."""

    @property
    def restricts(self) -> bool:
        """Whether not every token may come next."""
        return self._matcher is not None or (
            self._gate is not None and self._gate.forced_id is not None
        )

    @property
    def excused_s(self) -> float:
        """See Matcher."""
        return self._matcher.excused_s if self._matcher is not None else 0.0

    def take_num_matched(self) -> int:
        """Returns by how many tokens the matcher was advanced since this was asked last."""
        num_matched, self._num_matched = self._num_matched, 0
        return num_matched

    def note(self, token_id: int) -> None:
        """Notes a token that was drawn, which was no end; `catch_up` goes on behind it."""
        self._news.append(token_id)

    def catch_up(self) -> None:
        """Goes on behind the tokens that were noted. Raises GrammarError, as `accept`."""
        news, self._news = self._news, []
        for token_id in news:
            self.accept(token_id)

    def accept(self, token_id: int) -> None:
        """Goes on behind a token.

        Raises:
            GrammarError: it has no place in the grammar.
        """
        self._num_tokens += 1
        if self._gate is not None and self._gate.phase is not Phase.ANSWER:
            was_reasoning = self._gate.phase is Phase.REASONING
            if not self._gate.accept(self._rules.vocabulary.tokens[token_id]):
                return
            if was_reasoning and self._matcher is not None:
                raise GrammarError(
                    ErrorReason.INTERNAL,
                    f"Token {token_id} ends the reasoning and begins the answer.",
                )
        if self._matcher is not None:
            self._matcher.accept(token_id)
            self._num_matched += 1

    def fill(self, table: NDArray[np.int32]) -> None:
        """Writes which tokens may come next into `table` [1, W], of any content before.

        Raises:
            GrammarError: none may, or finding out takes too much.
        """
        row = table[0]
        phase = self._gate.phase if self._gate is not None else Phase.ANSWER
        if phase is Phase.REASONING:
            self._fill_reasoning(row)
            return
        may_end = self._fill_grammar(table)
        if self._gate is not None and phase is Phase.BLANKS:
            self._gate.allow_blanks(row)
        self._rules.apply(row, may_end=may_end, num_tokens=self._num_tokens)
        if not row.any():
            raise GrammarError(
                ErrorReason.UNSUPPORTED_CONSTRAINT,
                f"After {self._num_tokens} tokens no token of the model continues the output as "
                "its constraint asks.",
            )

    def _fill_grammar(self, table: NDArray[np.int32]) -> bool:
        """Writes what the grammar allows; returns whether the output may end."""
        assert self._matcher is not None
        assert self._backend is not None
        (error,) = self._backend.fill([self._matcher], table, [0])
        if error is not None:
            raise error
        end_id = self._rules.vocabulary.size
        row, end_bit = table[0], np.int32(1 << end_id % 32 if end_id % 32 < 31 else -(1 << 31))
        may_end = bool(row[end_id // 32] & end_bit)
        row[end_id // 32] &= ~end_bit
        return may_end

    def _fill_reasoning(self, row: NDArray[np.int32]) -> None:
        assert self._gate is not None
        forced_id = self._gate.forced_id
        if forced_id is not None:
            row[:] = 0
            TokenBits.of((forced_id,), self._rules.vocabulary).set(row)
            return
        row[:] = -1
        row[-1] = (1 << self._rules.vocabulary.size % 32) - 1
        overrunning = self._gate.overrunning_ids
        if overrunning.size:
            TokenBits.of(tuple(overrunning.tolist()), self._rules.vocabulary).clear(row)
        # Reasoning alone is no answer: an output under a grammar doesn't end in it.
        self._rules.apply(row, may_end=False, num_tokens=self._num_tokens)
