"""One schema through one candidate: compiled, and its instances walked token by token."""

import time
from dataclasses import dataclass, field

import numpy as np

from antiphon_engine.grammar.base import mask_words
from bench.grammar_matchers import Compile, Matcher, Refusal, Start, Vocabulary
from support.json_spellings import odd_texts, valid_texts
from support.schema_cases import Case, Instance

STOP = " ⟂ "
"""Where a text was stopped."""


@dataclass(slots=True, kw_only=True)
class Verdict:
    """What became of a schema. Times are the thread's CPU time: others' load is not in them."""

    refusal: str | None = None
    compile_ns: int = 0
    mask_ns: list[int] = field(default_factory=list)
    invalid_accepted: list[str] = field(default_factory=list)
    """In any spelling."""
    invalid_accepted_as_written: int = 0
    valid_rejected: list[str] = field(default_factory=list)
    """Each with a mark where it went wrong."""
    crash: str | None = None
    is_timeout: bool = False

    @property
    def passes(self) -> bool:
        """It is taken, and right about all instances, however they are spelt."""
        return self.passes_as_written and not self.invalid_accepted

    @property
    def passes_as_written(self) -> bool:
        """It is taken, and right about all instances as a model would write them."""
        is_taken = self.refusal is None and self.crash is None and not self.is_timeout
        return is_taken and not self.invalid_accepted_as_written and not self.valid_rejected


class Walker:
    """Walks instances with one candidate."""

    def __init__(
        self, vocabulary: Vocabulary, compile_schema: Compile, *, num_repeats: int
    ) -> None:
        """Takes how often each text is walked; of each mask's times the least counts."""
        self._vocabulary = vocabulary
        self._compile = compile_schema
        self._num_repeats = num_repeats
        self._mask = np.zeros((1, mask_words(vocabulary.size)), dtype=np.int32)

    def walk(self, case: Case) -> Verdict:
        """Returns what the candidate makes of a case."""
        verdict = Verdict()
        text = case.schema_text
        before_ns = time.thread_time_ns()
        try:
            start = self._compile(text)
        except Refusal as refusal:
            verdict.refusal = str(refusal)
            return verdict
        finally:
            verdict.compile_ns = time.thread_time_ns() - before_ns
        for instance in case.instances:
            self._judge(start, case, instance, verdict)
        return verdict

    def _judge(self, start: Start, case: Case, instance: Instance, verdict: Verdict) -> None:
        written = valid_texts(instance.value, case.schema)
        more = [] if instance.is_valid else odd_texts(instance.value, case.schema)
        stops = []
        for text in (*written, *more):
            mask_ns: list[int] = []
            stopped_at = self._stop(start(), text, mask_ns)
            # Odd texts are attacks: what they cost says nothing of what a model would meet.
            if text in written:
                verdict.mask_ns += self._least(start, text, mask_ns)
            if stopped_at is None:
                if not instance.is_valid:
                    verdict.invalid_accepted.append(text)
                    verdict.invalid_accepted_as_written += text in written
                return
            stops.append(text[:stopped_at] + STOP + text[stopped_at:])
        if instance.is_valid:
            verdict.valid_rejected.append(stops[0])

    def _least(self, start: Start, text: str, mask_ns: list[int]) -> list[int]:
        for _ in range(self._num_repeats - 1):
            again_ns: list[int] = []
            self._stop(start(), text, again_ns)
            mask_ns = list(map(min, mask_ns, again_ns))
        return mask_ns

    def _stop(self, matcher: Matcher, text: str, mask_ns: list[int]) -> int | None:
        """Returns after how many characters a text is stopped; None: it is taken, and may end."""
        ids, row = self._vocabulary.encode(text), self._mask[0]
        for index, token_id in enumerate(ids):
            self._fill(matcher, mask_ns)
            is_allowed = bool(row[token_id >> 5] >> (token_id & 31) & 1)
            if not is_allowed:
                return len(self._vocabulary.decode(ids[:index]))
            if not matcher.accept(token_id):
                raise RuntimeError(
                    f"the mask allows token {token_id} and the matcher doesn't: {matcher.fault()}"
                )
        self._fill(matcher, mask_ns)
        may_end = any(row[end >> 5] >> (end & 31) & 1 for end in matcher.end_ids())
        return None if may_end else len(text)

    def _fill(self, matcher: Matcher, mask_ns: list[int]) -> None:
        before_ns = time.thread_time_ns()
        matcher.fill(self._mask)
        mask_ns.append(time.thread_time_ns() - before_ns)
        if fault := matcher.fault():
            raise RuntimeError(fault)
