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

from antiphon_engine.api.grammar import GrammarBackend
from antiphon_engine.grammar.backends import Backends
from antiphon_engine.grammar.base import GrammarBackend as EngineBackend
from antiphon_engine.grammar.base import GrammarError
from antiphon_engine.grammar.base import Matcher as EngineMatcher


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

    def end_ids(self) -> Sequence[int]:
        """Bits of the mask any of which says that the output may end."""


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
        self.checkpoint = checkpoint
        config = json.loads((checkpoint / "config.json").read_text())
        path = checkpoint / "tokenizer.json"
        self.tokenizer = Tokenizer.from_file(str(path))
        self.size: int = config["vocab_size"]
        self.end_ids = self._end_ids(config)
        ids = self.tokenizer.get_vocab(with_added_tokens=True)
        # One more than the model has, as the engine's masks have a bit for the end.
        texts = [""] * (self.size + 1)
        for text, token_id in ids.items():
            texts[token_id] = text
        self.xgrammar = xgrammar.TokenizerInfo(
            texts,
            xgrammar.VocabType.BYTE_LEVEL,
            vocab_size=self.size + 1,
            stop_token_ids=list(self.end_ids),
            add_prefix_space=False,
        )
        self.llguidance = llguidance.LLTokenizer(
            path.read_text(encoding="utf-8"), n_vocab=self.size + 1, eos_token=list(self.end_ids)
        )

    def _end_ids(self, config: dict[str, object]) -> Sequence[int]:
        generation = self.checkpoint / "generation_config.json"
        settings = self.checkpoint / "tokenizer_config.json"
        ends = config.get("eos_token_id")
        if generation.exists():
            ends = json.loads(generation.read_text()).get("eos_token_id", ends)
        if ends is None:
            ends = self.tokenizer.token_to_id(json.loads(settings.read_text())["eos_token"])
        return ends if isinstance(ends, list) else [ends]

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
    return (_ours if candidate is Candidate.OURS else _xgrammar)(vocabulary, max_blank)


def _xgrammar(vocabulary: Vocabulary, max_blank: int) -> Compile:
    first = xgrammar.GrammarCompiler(
        vocabulary.xgrammar, max_threads=1, cache_enabled=False, enable_dynamic_compilation=True
    )

    def compile_schema(schema: str) -> Start:
        try:
            compiled = first.compile_json_schema(
                schema, any_whitespace=True, max_whitespace_cnt=max_blank or None, strict_mode=False
            )
        except (RuntimeError, ValueError) as error:
            raise Refusal(str(error)) from error
        return lambda: _XgrammarMatcher(compiled, vocabulary.end_ids)

    return compile_schema


def _ours(vocabulary: Vocabulary, max_blank: int) -> Compile:
    from antiphon_server.constraints.json_schema import PlanLimits, plan_schema
    from antiphon_server.constraints.refusals import (
        ConstraintTooComplexError,
        UnsupportedConstraintError,
    )

    backends = Backends.load(vocabulary.checkpoint, vocabulary_size=vocabulary.size)
    for name in GrammarBackend:
        # Built once in a process that lasts: no schema pays for it.
        assert backends[name]

    def compile_schema(schema: str) -> Start:
        try:
            grammar = plan_schema(schema, max_blank=max_blank, limits=PlanLimits())
            compiled = backends.compile(grammar)
        except (ConstraintTooComplexError, GrammarError, UnsupportedConstraintError) as error:
            raise Refusal(str(error)) from error
        return lambda: _EngineMatcher(
            backends[grammar.backend], compiled.matcher(), vocabulary.size
        )

    return compile_schema


def _llguidance(vocabulary: Vocabulary, grammar: str) -> Start:
    matcher = llguidance.LLMatcher(vocabulary.llguidance, grammar, log_level=0)
    if matcher.is_error():
        raise Refusal(matcher.get_error())
    return lambda: _LlguidanceMatcher(matcher.deep_copy(), vocabulary.end_ids)


class _XgrammarMatcher:
    def __init__(self, compiled: xgrammar.CompiledGrammar, end_ids: Sequence[int]) -> None:
        self._end_ids = end_ids
        self._matcher = xgrammar.GrammarMatcher(compiled)

    def fill(self, mask: npt.NDArray[np.int32]) -> None:
        if not self._matcher.fill_next_token_bitmask(mask):
            mask.fill(-1)

    def accept(self, token_id: int) -> bool:
        return bool(self._matcher.accept_token(token_id))

    def fault(self) -> str:
        return ""

    def end_ids(self) -> Sequence[int]:
        return self._end_ids


class _LlguidanceMatcher:
    def __init__(self, matcher: llguidance.LLMatcher, end_ids: Sequence[int]) -> None:
        self._end_ids = end_ids
        self._matcher = matcher

    def fill(self, mask: npt.NDArray[np.int32]) -> None:
        self._matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)

    def accept(self, token_id: int) -> bool:
        return bool(self._matcher.consume_token(token_id))

    def fault(self) -> str:
        return str(self._matcher.get_error()) if self._matcher.is_error() else ""

    def end_ids(self) -> Sequence[int]:
        return self._end_ids


class _EngineMatcher:
    """One of the engine's, whose masks have a bit for the end behind the vocabulary's."""

    def __init__(self, backend: EngineBackend, matcher: EngineMatcher, end_id: int) -> None:
        self._backend = backend
        self._matcher = matcher
        self._end_id = end_id
        self._fault: GrammarError | None = None

    def fill(self, mask: npt.NDArray[np.int32]) -> None:
        (self._fault,) = self._backend.fill([self._matcher], mask, [0])

    def accept(self, token_id: int) -> bool:
        try:
            self._matcher.accept(token_id)
        except GrammarError as error:
            self._fault = error
        return self._fault is None

    def fault(self) -> str:
        return str(self._fault or "")

    def end_ids(self) -> Sequence[int]:
        return (self._end_id,)
