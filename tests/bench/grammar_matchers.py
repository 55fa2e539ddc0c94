"""What a schema is compiled with: ours, and each library as it comes."""

import enum
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import llguidance
import numpy as np
import numpy.typing as npt
import xgrammar
from tokenizers import Tokenizer

from antiphon_engine.api.grammar import Grammar, GrammarBackend, GrammarKind


class Refusal(Exception):  # noqa: N818 - an answer, not an error
    """The schema is not taken, for a reason that its author can read."""


class Matcher(Protocol):
    """What may come next in one output."""

    def fill(self, mask: npt.NDArray[np.int32]) -> None:
        """Sets the bits of the tokens that may come next."""

    def accept(self, token_id: int) -> bool:
        """Takes a token; False if it may not come."""

    def fault(self) -> str:
        """Why it can't go on; empty while it can."""


Start = Callable[[], Matcher]
"""Begins an output."""
Compile = Callable[[str], Start]


class Candidate(enum.StrEnum):
    """What is compared."""

    OURS = "ours"
    XGRAMMAR = "xgrammar"
    LLGUIDANCE = "llguidance"


class Vocabulary:
    """A byte-level tokenizer, as each library wants it."""

    def __init__(self, checkpoint: Path) -> None:
        config = json.loads((checkpoint / "config.json").read_text())
        path = checkpoint / "tokenizer.json"
        self.tokenizer = Tokenizer.from_file(str(path))
        self.size: int = config["vocab_size"]
        ends = config["eos_token_id"]
        generation = checkpoint / "generation_config.json"
        if generation.exists():
            ends = json.loads(generation.read_text()).get("eos_token_id", ends)
        self.end_ids: Sequence[int] = ends if isinstance(ends, list) else [ends]
        ids = self.tokenizer.get_vocab(with_added_tokens=True)
        texts = [""] * max(self.size, 1 + max(ids.values()))
        for text, token_id in ids.items():
            texts[token_id] = text
        self.xgrammar = xgrammar.TokenizerInfo(
            texts,
            xgrammar.VocabType.BYTE_LEVEL,
            vocab_size=self.size,
            stop_token_ids=list(self.end_ids),
            add_prefix_space=False,
        )
        self.llguidance = llguidance.LLTokenizer(
            path.read_text(encoding="utf-8"), n_vocab=self.size, eos_token=list(self.end_ids)
        )

    def encode(self, text: str) -> list[int]:
        """Returns the tokens that the model would see."""
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Returns the text of tokens."""
        text: str = self.tokenizer.decode(list(ids), skip_special_tokens=False)
        return text


def compiler(candidate: Candidate, vocabulary: Vocabulary, max_blank: int) -> Compile:
    """Returns how a candidate compiles a schema's text, with one thread."""
    if candidate is Candidate.LLGUIDANCE:
        return lambda schema: _llguidance(
            vocabulary, llguidance.LLMatcher.grammar_from_json_schema(schema)
        )
    first = xgrammar.GrammarCompiler(
        vocabulary.xgrammar, max_threads=1, cache_enabled=False, enable_dynamic_compilation=True
    )
    return (_ours if candidate is Candidate.OURS else _xgrammar)(vocabulary, first, max_blank)


def _xgrammar(_: Vocabulary, first: xgrammar.GrammarCompiler, max_blank: int) -> Compile:
    def compile_schema(schema: str) -> Start:
        try:
            compiled = first.compile_json_schema(
                schema, any_whitespace=True, max_whitespace_cnt=max_blank or None, strict_mode=False
            )
        except (RuntimeError, ValueError) as error:
            raise Refusal(str(error)) from error
        return lambda: _XgrammarMatcher(compiled)

    return compile_schema


def _ours(vocabulary: Vocabulary, first: xgrammar.GrammarCompiler, max_blank: int) -> Compile:
    from antiphon_server.constraints.json_schema import PlanLimits, plan_schema
    from antiphon_server.constraints.refusals import (
        ConstraintTooComplexError,
        UnsupportedConstraintError,
    )

    def compile_schema(schema: str) -> Start:
        try:
            grammar = plan_schema(schema, max_blank=max_blank, limits=PlanLimits())
        except (ConstraintTooComplexError, UnsupportedConstraintError) as error:
            raise Refusal(str(error)) from error
        return _compile(vocabulary, first, grammar)

    return compile_schema


def _compile(vocabulary: Vocabulary, first: xgrammar.GrammarCompiler, grammar: Grammar) -> Start:
    text = grammar.text
    if grammar.backend is GrammarBackend.LLGUIDANCE:
        compiled = (
            llguidance.LLMatcher.grammar_from_lark(text)
            if grammar.kind is GrammarKind.LARK
            else llguidance.LLMatcher.grammar_from_json_schema(text)
        )
        return _llguidance(vocabulary, compiled)
    if grammar.kind is GrammarKind.EBNF:
        written = first.compile_grammar(text)
        return lambda: _XgrammarMatcher(written)
    blanks = grammar.max_blank
    converted = first.compile_json_schema(
        text,
        any_whitespace=blanks > 0,
        separators=None if blanks else (",", ":"),
        max_whitespace_cnt=blanks or None,
        strict_mode=False,
    )
    return lambda: _XgrammarMatcher(converted)


def _llguidance(vocabulary: Vocabulary, grammar: str) -> Start:
    matcher = llguidance.LLMatcher(vocabulary.llguidance, grammar, log_level=0)
    if matcher.is_error():
        raise Refusal(matcher.get_error())
    return lambda: _LlguidanceMatcher(matcher.deep_copy())


class _XgrammarMatcher:
    def __init__(self, compiled: xgrammar.CompiledGrammar) -> None:
        self._matcher = xgrammar.GrammarMatcher(compiled)

    def fill(self, mask: npt.NDArray[np.int32]) -> None:
        if not self._matcher.fill_next_token_bitmask(mask):
            mask.fill(-1)

    def accept(self, token_id: int) -> bool:
        return bool(self._matcher.accept_token(token_id))

    def fault(self) -> str:
        return ""


class _LlguidanceMatcher:
    def __init__(self, matcher: llguidance.LLMatcher) -> None:
        self._matcher = matcher

    def fill(self, mask: npt.NDArray[np.int32]) -> None:
        self._matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)

    def accept(self, token_id: int) -> bool:
        return bool(self._matcher.consume_token(token_id))

    def fault(self) -> str:
        return str(self._matcher.get_error()) if self._matcher.is_error() else ""
