"""The second backend: regular lexemes with intersection and complement, and a parser over them."""

import json
import re
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import cast

import numpy as np
from llguidance import LLExecutor, LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper
from numpy.typing import NDArray

from antiphon_engine.api.errors import ErrorReason
from antiphon_engine.api.grammar import Grammar, GrammarKind
from antiphon_engine.grammar.base import GrammarError, Matcher
from antiphon_engine.grammar.vocabulary import Vocabulary

# Forcing would tie the output to one split into tokens; the model shall choose its own.
_HEAD = '%llguidance {"no_forcing": true}\n'
# Sets of tokens whose fate is decided at once where a mask allows all of them: names, and what
# strings are made of. Shorter lengths are there for strings that end soon.
_NAME_CHARACTERS = "[a-zA-Z0-9_]"
_STRING_CHARACTERS = r'[^"\\\x00-\x1F\x7F\u{2028}\u{2029}]'
_SLICES = [
    _NAME_CHARACTERS + "{1,10}",
    _NAME_CHARACTERS + "{1,30}",
    _STRING_CHARACTERS + "{1,10}",
    _STRING_CHARACTERS + "{1,30}",
    _STRING_CHARACTERS + "+",
]
_EXCERPT = re.compile(r"\s*(\d+ \|.*|\^|<.*)?$")
"""Lines of a message that show a grammar's lines, or what the library says of itself."""
_BYTES_PER_CHARACTER = 64
_BYTES_AT_LEAST = 64 << 10
"""Measured: what even the smallest grammar takes with its parser and its first masks."""
_TOO_COMPLEX = ("too complex", "too big", "too large", "too many", "limit", "fuel")
_LIMITS = LLParserLimits(step_lexer_fuel=200_000, step_max_items=50_000, verbose_errors=False)


class LlguidanceMatcher:
    """See Matcher.

    Matchers of one grammar share what its lexer has found out, and that has a limit. One that
    reaches it breaks the lexer for all of them, so each goes on with a lexer of its own from there;
    the one whose output takes too much reaches the limit again, alone.
    """

    def __init__(self, compiled: "LlguidanceCompiled", matcher: LLMatcher) -> None:
        self.matcher = matcher
        self._compiled = compiled
        self._shares_lexer = True
        self._token_ids: list[int] = []

    def accept(self, token_id: int) -> None:
        """See Matcher."""
        accepted = self.matcher.consume_token(token_id)
        if not accepted and self.recover():
            accepted = self.matcher.consume_token(token_id)
        if not accepted:
            raise _matcher_error(self.matcher) or GrammarError(
                ErrorReason.INTERNAL, f"Token {token_id} was drawn and the grammar has no place."
            )
        self._token_ids.append(token_id)

    def rollback(self, num_tokens: int) -> None:
        """See Matcher."""
        if num_tokens and not self.matcher.rollback(num_tokens):
            raise _matcher_error(self.matcher) or GrammarError(
                ErrorReason.INTERNAL, f"The grammar's matcher can't go back {num_tokens} tokens."
            )
        del self._token_ids[len(self._token_ids) - num_tokens :]

    def may_end(self) -> bool:
        """See Matcher."""
        return self.matcher.is_accepting()

    def fork(self) -> "LlguidanceMatcher":
        """See Matcher."""
        other = LlguidanceMatcher(self._compiled, self.matcher.deep_copy())
        other._token_ids = [*self._token_ids]
        return other

    def recover(self) -> bool:
        """Goes to the same place with a lexer of its own, where the shared one is at its limit."""
        error = _matcher_error(self.matcher)
        is_at_limit = error is not None and error.reason is ErrorReason.CONSTRAINT_TOO_COMPLEX
        if not is_at_limit or not self._shares_lexer:
            return False
        self._compiled.forget()
        self._shares_lexer = False
        self.matcher = self._compiled.anew()
        return all(map(self.matcher.consume_token, self._token_ids))


class LlguidanceCompiled:
    """See CompiledGrammar."""

    def __init__(self, anew: Callable[[], LLMatcher], *, size_bytes: int) -> None:
        """Takes what compiles it, and does so at once."""
        self.anew = anew
        self.size_bytes = size_bytes
        self._compiling = threading.Lock()
        self._beginning: LLMatcher | None = anew()

    def matcher(self) -> LlguidanceMatcher:
        """See CompiledGrammar."""
        with self._compiling:
            if self._beginning is None:
                self._beginning = self.anew()
            return LlguidanceMatcher(self, self._beginning.deep_copy())

    def forget(self) -> None:
        """Lets go of a lexer that is at its limit: later matchers get another."""
        with self._compiling:
            self._beginning = None


class LlguidanceBackend:
    """See GrammarBackend."""

    def __init__(self, vocabulary: Vocabulary, *, num_threads: int) -> None:
        self._tokenizer = LLTokenizer(
            TokenizerWrapper(_Tokens(vocabulary)),
            n_vocab=vocabulary.size + 1,
            eos_token=vocabulary.size,
            slices=_SLICES,
        )
        self._executor = LLExecutor(num_threads)

    def compile(self, grammar: Grammar) -> LlguidanceCompiled:
        """See GrammarBackend."""
        size_bytes = _BYTES_AT_LEAST + _BYTES_PER_CHARACTER * len(grammar.text)
        return LlguidanceCompiled(partial(self._compile, grammar), size_bytes=size_bytes)

    def fill(
        self, matchers: Sequence[Matcher], masks: NDArray[np.int32], rows: Sequence[int]
    ) -> list[GrammarError | None]:
        """See GrammarBackend."""
        assert masks.flags.c_contiguous
        own = [cast(LlguidanceMatcher, matcher) for matcher in matchers]
        start, row_bytes = masks.ctypes.data, masks.shape[1] * masks.itemsize
        if len(own) == 1:
            # A thread of the pool would cost more than most masks.
            own[0].matcher.unsafe_compute_mask_ptr(start + rows[0] * row_bytes, row_bytes)
        else:
            inner = [(each.matcher, row) for each, row in zip(own, rows, strict=True)]
            self._executor.unsafe_compute_mask_ptr(inner, start, row_bytes, masks.shape[0])
        errors = [_matcher_error(each.matcher) for each in own]
        for place, error in enumerate(errors):
            if error is not None and own[place].recover():
                matcher = own[place].matcher
                matcher.unsafe_compute_mask_ptr(start + rows[place] * row_bytes, row_bytes)
                errors[place] = _matcher_error(matcher)
        return errors

    def _compile(self, grammar: Grammar) -> LLMatcher:
        matcher = LLMatcher(self._tokenizer, _HEAD + _lark(grammar), log_level=0, limits=_LIMITS)
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


def _lark(grammar: Grammar) -> str:
    match grammar.kind:
        case GrammarKind.LARK:
            return grammar.text
        case GrammarKind.REGEX:
            wrapped = json.loads(LLMatcher.grammar_from_regex(grammar.text))
            return str(wrapped["grammars"][0]["lark_grammar"])
        case GrammarKind.JSON_SCHEMA:
            return f"start: %json {_schema(grammar)}"
    raise GrammarError(
        ErrorReason.UNSUPPORTED_CONSTRAINT, f"llguidance reads no {grammar.kind} grammar."
    )


def _schema(grammar: Grammar) -> str:
    """Returns the schema with the options that the library reads from inside of it."""
    try:
        schema = json.loads(grammar.text)
    except ValueError as error:
        raise GrammarError(
            ErrorReason.UNSUPPORTED_CONSTRAINT, f"The schema is no JSON: {error}."
        ) from error
    except RecursionError as error:
        raise GrammarError(
            ErrorReason.CONSTRAINT_TOO_COMPLEX, "The schema is nested too deep; flatten it."
        ) from error
    if not isinstance(schema, dict):
        schema = {} if schema is True else {"not": {}}
    options: dict[str, object] = {
        "item_separator": ",",
        "key_separator": ":",
        "whitespace_flexible": grammar.max_blank > 0,
        "coerce_one_of": False,
        "lenient": False,
    }
    if grammar.max_blank:
        options["whitespace_pattern"] = rf"[\x20\x0A\x0D\x09]{{1,{grammar.max_blank}}}"
    return json.dumps({**schema, "x-guidance": options})


def _matcher_error(matcher: LLMatcher) -> GrammarError | None:
    if not matcher.is_error():
        return None
    message = _error_text(matcher)
    too_complex = any(word in message.lower() for word in _TOO_COMPLEX)
    reason = ErrorReason.CONSTRAINT_TOO_COMPLEX if too_complex else ErrorReason.INTERNAL
    return GrammarError(reason, message)


def _error_text(matcher: LLMatcher) -> str:
    """Returns what the library says of the fault, without what it says of itself."""
    lines = matcher.get_error().strip().splitlines()
    told = [line.strip() for line in lines if not _EXCERPT.match(line)]
    return " ".join(told).removeprefix("parser error: ")
