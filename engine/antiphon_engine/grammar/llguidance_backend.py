"""The second backend: regular lexemes with intersection and complement, and a parser over them."""

import math
import re
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import cast

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper
from numpy.typing import NDArray

from antiphon_engine.api.errors import ErrorReason
from antiphon_engine.api.grammar import Grammar
from antiphon_engine.grammar.base import GrammarError, Matcher
from antiphon_engine.grammar.llguidance_lexers import (
    NUM_STATES,
    LargeLexers,
    Lexer,
    LexerSource,
    is_of_states,
)
from antiphon_engine.grammar.vocabulary import Vocabulary

# Forcing would tie the output to one split into tokens; the model shall choose its own.
_HEAD = '%llguidance {"no_forcing": true}\n'
# Sets of tokens whose fate is decided at once where a mask allows all of them: slugs, names, words,
# and what strings are made of. Shorter lengths are there for strings that end soon.
_SLUG_CHARACTERS = "[a-z]"
_NAME_CHARACTERS = "[a-zA-Z0-9_]"
_WORD_CHARACTERS = (
    r'[^"\\\x00-\x20\x7F\u{A0}\u{1680}\u{2000}-\u{200A}\u{2028}\u{2029}\u{202F}\u{205F}\u{3000}'
    r"\u{FEFF}]"
)
_STRING_CHARACTERS = r'[^"\\\x00-\x1F\x7F\u{2028}\u{2029}]'
_SLICES = [
    _SLUG_CHARACTERS + "{1,10}",
    _SLUG_CHARACTERS + "{1,30}",
    _NAME_CHARACTERS + "{1,10}",
    _NAME_CHARACTERS + "{1,30}",
    _WORD_CHARACTERS + "{1,10}",
    _WORD_CHARACTERS + "{1,30}",
    _STRING_CHARACTERS + "{1,7}",
    _STRING_CHARACTERS + "{1,10}",
    _STRING_CHARACTERS + "{1,30}",
    _STRING_CHARACTERS + "+",
]
_EXCERPT = re.compile(r"\s*(\d+ \|.*|\^|<.*)?$")
"""Lines of a message that show a grammar's lines, or what the library says of itself."""
_BYTES_PER_CHARACTER = 64
_BYTES_AT_LEAST = 64 << 10
"""Measured: what even the smallest grammar takes with its parser, beside its lexer."""
_BYTES_WITHOUT_MASK = 128
"""A mask gives a lexer new fuel, and without any it takes no more text after some thousand bytes.
So where no masks are asked for, one is made behind so many."""
_SMALL_CHARACTERS = 1000
"""Measured: larger grammars mostly need more states than the fewest."""
_NO_TOKEN = "NoExtensionBias"
_TOO_COMPLEX = ("too complex", "too big", "too large", "too many", "limit", "fuel")


class LlguidanceMatcher:
    """See Matcher.

    Matchers of one grammar share a lexer. One that reaches the limit of a step breaks it for all of
    them; then each goes on with a lexer of its own, and the one whose output takes too much reaches
    the limit again, alone.
    """

    def __init__(self, lexers: LexerSource, lexer: Lexer, matcher: LLMatcher) -> None:
        self._lexers = lexers
        self._lexer = lexer
        self._matcher = matcher
        self._shares_lexer = True
        self._token_ids: list[int] = []
        self._num_unmasked_bytes = 0
        self._is_sure = False
        """Whether the grammar allows what is followed: a mask has told, or it was so before."""
        self._excused_s = 0.0
        self._is_moving = False

    @property
    def excused_s(self) -> float:
        """See Matcher."""
        return math.inf if self._is_moving else self._excused_s

    def accept(self, token_id: int) -> None:
        """See Matcher."""
        accepted = self._consume(token_id)
        if not accepted and self._recover():
            accepted = self._consume(token_id)
        if not accepted:
            raise self._error() or GrammarError(
                ErrorReason.INTERNAL, f"Token {token_id} was drawn and the grammar has no place."
            )
        self._token_ids.append(token_id)
        self._is_sure = False

    def fill(self, address: int, num_bytes: int) -> GrammarError | None:
        """Writes the mask of the next token to memory; returns why it is not to be used, if so."""
        try:
            if self._lexer.is_spent:
                self._go_on_with(self._larger_lexer)
            self._compute_mask(address, num_bytes)
            while self._recover():
                self._compute_mask(address, num_bytes)
        except GrammarError as error:
            return error
        fault = self._error()
        self._is_sure = fault is None
        return fault

    def rollback(self, num_tokens: int) -> None:
        """See Matcher."""
        if num_tokens and not self._matcher.rollback(num_tokens):
            raise _matcher_error(self._matcher) or GrammarError(
                ErrorReason.INTERNAL, f"The grammar's matcher can't go back {num_tokens} tokens."
            )
        del self._token_ids[len(self._token_ids) - num_tokens :]
        self._is_sure = False

    def may_end(self) -> bool:
        """See Matcher."""
        return self._matcher.is_accepting()

    def fork(self) -> "LlguidanceMatcher":
        """See Matcher."""
        other = LlguidanceMatcher(self._lexers, self._lexer, self._matcher.deep_copy())
        other._shares_lexer = self._shares_lexer
        other._token_ids = [*self._token_ids]
        return other

    def _consume(self, token_id: int) -> bool:
        """Goes on behind a token; False: the library is at an error."""
        self._num_unmasked_bytes += self._lexers.token_sizes[token_id]
        if self._num_unmasked_bytes > _BYTES_WITHOUT_MASK:
            self._num_unmasked_bytes = 0
            self._matcher.compute_bitmask()
        return bool(self._matcher.consume_token(token_id))

    def _compute_mask(self, address: int, num_bytes: int) -> None:
        begun_s = time.thread_time()
        self._matcher.unsafe_compute_mask_ptr(address, num_bytes)
        self._num_unmasked_bytes = 0
        self._lexer.note_mask(self._matcher, time.thread_time() - begun_s)

    def _recover(self) -> bool:
        """Goes to the same place with other lexers, as long as this one is at a limit.

        Returns whether it stands there. Raises GrammarError: there is no room for a lexer.
        """
        has_moved = False
        while (find_lexer := self._way_out()) is not None:
            self._go_on_with(find_lexer)
            has_moved = True
        return has_moved and not self._matcher.is_error()

    def _way_out(self) -> Callable[[], Lexer] | None:
        """Returns what finds a lexer to go on with; None: nothing is wrong, or nothing helps."""
        error = self._error()
        if error is None or error.reason is not ErrorReason.CONSTRAINT_TOO_COMPLEX:
            return None
        if is_of_states(error):
            lasts = self._shares_lexer or self._lexer.next_num_states is not None
            return self._larger_lexer if lasts else None
        return self._own_lexer if self._shares_lexer else None

    def _error(self) -> GrammarError | None:
        error = _matcher_error(self._matcher)
        if error is not None and error.reason is ErrorReason.INTERNAL:
            # A lexer at a limit takes no token: that a token has no place may mean that alone.
            beginning = self._lexer.beginning.deep_copy()
            beginning.compute_bitmask()
            return _matcher_error(beginning) or (_too_much_to_follow() if self._is_sure else error)
        return error

    def _larger_lexer(self) -> Lexer:
        if not self._shares_lexer:
            return self._lexers.own(self._lexer.next_num_states or self._lexer.num_states)
        return self._lexers.next_shared(self._lexer) or self._own_lexer()

    def _own_lexer(self) -> Lexer:
        self._lexers.forget(self._lexer)
        self._shares_lexer = False
        return self._lexers.own(self._lexer.num_states)

    def _go_on_with(self, find_lexer: Callable[[], Lexer]) -> None:
        """Goes to the same place with another lexer."""
        begun_s = time.thread_time()
        self._is_moving = True
        try:
            self._lexer = find_lexer()
            self._matcher = self._lexer.beginning.deep_copy()
            self._num_unmasked_bytes = 0
            was_sure, self._is_sure = self._is_sure, True
            if all(map(self._consume, self._token_ids)):
                self._is_sure = was_sure
        finally:
            self._excused_s += time.thread_time() - begun_s
            self._is_moving = False


class LlguidanceCompiled:
    """See CompiledGrammar."""

    def __init__(self, lexers: LexerSource, *, first_bytes: int) -> None:
        """Takes the grammar's lexers, and what it takes without them."""
        self._lexers = lexers
        self._first_bytes = first_bytes

    @property
    def size_bytes(self) -> int:
        """See CompiledGrammar."""
        return self._first_bytes + self._lexers.size_bytes

    def matcher(self) -> LlguidanceMatcher:
        """See CompiledGrammar."""
        lexer = self._lexers.share()
        return LlguidanceMatcher(self._lexers, lexer, lexer.beginning.deep_copy())


class LlguidanceBackend:
    """See GrammarBackend."""

    def __init__(self, vocabulary: Vocabulary, *, large_bytes: int) -> None:
        self._tokenizer = LLTokenizer(
            TokenizerWrapper(_Tokens(vocabulary)),
            n_vocab=vocabulary.size + 1,
            eos_token=vocabulary.size,
            slices=_SLICES,
        )
        self._token_sizes = [*map(len, vocabulary.tokens)]
        self._large_lexers = LargeLexers(large_bytes)

    def compile(self, grammar: Grammar) -> LlguidanceCompiled:
        """See GrammarBackend."""
        first_bytes = _BYTES_AT_LEAST + _BYTES_PER_CHARACTER * len(grammar.text)
        lexers = LexerSource(
            partial(self._compile, _HEAD + grammar.text),
            self._large_lexers,
            token_sizes=self._token_sizes,
            first_num_states=NUM_STATES[len(grammar.text) > _SMALL_CHARACTERS],
        )
        return LlguidanceCompiled(lexers, first_bytes=first_bytes)

    def fill(
        self, matchers: Sequence[Matcher], masks: NDArray[np.int32], rows: Sequence[int]
    ) -> list[GrammarError | None]:
        """See GrammarBackend."""
        assert masks.flags.c_contiguous
        first, row_bytes = masks.ctypes.data, masks.shape[1] * masks.itemsize
        return [
            cast(LlguidanceMatcher, matcher).fill(first + row * row_bytes, row_bytes)
            for matcher, row in zip(matchers, rows, strict=True)
        ]

    def _compile(self, text: str, limits: LLParserLimits) -> LLMatcher:
        matcher = LLMatcher(self._tokenizer, text, log_level=0, limits=limits)
        error = _matcher_error(matcher)
        if error is not None:
            if error.reason is ErrorReason.INTERNAL:
                error = GrammarError(ErrorReason.UNSUPPORTED_CONSTRAINT, error.message)
            raise error
        return matcher


class _Tokens:
    """A vocabulary as the library wants to see it."""

    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.eos_token_id = vocabulary.size
        self.tokens = [*vocabulary.tokens, b"<end>"]
        self.special_token_ids = [*sorted(vocabulary.control_ids), vocabulary.size]

    def __call__(self, text: bytes) -> list[int]:
        """Splits a text, which is asked for where tokens are forced: they never are."""
        return []


def _matcher_error(matcher: LLMatcher) -> GrammarError | None:
    if not matcher.is_error():
        return None
    message = _error_text(matcher)
    if message == _NO_TOKEN:
        return GrammarError(
            ErrorReason.UNSUPPORTED_CONSTRAINT,
            "No token of the model continues the output as its constraint asks.",
        )
    too_complex = any(word in message.lower() for word in _TOO_COMPLEX)
    reason = ErrorReason.CONSTRAINT_TOO_COMPLEX if too_complex else ErrorReason.INTERNAL
    return GrammarError(reason, message)


def _too_much_to_follow() -> GrammarError:
    return GrammarError(
        ErrorReason.CONSTRAINT_TOO_COMPLEX,
        "The constraint takes too much to follow at this place; simplify it.",
    )


def _error_text(matcher: LLMatcher) -> str:
    """Returns what the library says of the fault, without what it says of itself."""
    told, _, _ = matcher.get_error().partition("\n<state>")
    lines = told.strip().splitlines()
    whole = " ".join(line.strip() for line in lines if not _EXCERPT.match(line))
    return whole.removeprefix("parser error: ")
