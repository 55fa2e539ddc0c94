"""First masks, which are made before a request runs: one that takes too long fails it alone."""

import threading
import time
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from antiphon_engine.api.errors import ErrorReason
from antiphon_engine.api.grammar import Grammar, GrammarBackend
from antiphon_engine.api.messages import GenerationRequest, SamplingParams, StopParams
from antiphon_engine.grammar.backends import Backends
from antiphon_engine.grammar.base import CompiledGrammar, GrammarError, Matcher
from antiphon_engine.grammar.preparing import GuideMaker, Prepared
from antiphon_engine.grammar.token_clock import MAX_LEFT_BEHIND
from antiphon_engine.grammar.vocabulary import Vocabulary

NUM_MAKERS = 2
LIMIT_S = 0.02
DEADLINE_S = 60.0


class TextMatcher:
    """Stands for any place in a grammar."""

    excused_s = 0.0

    def __init__(self, text: str) -> None:
        self.text = text

    def accept(self, token_id: int) -> None:
        raise AssertionError("nothing is resumed here")

    def rollback(self, num_tokens: int) -> None:
        raise AssertionError("nothing is taken back here")

    def may_end(self) -> bool:
        return False

    def fork(self) -> "TextMatcher":
        return self


class TextCompiled:
    size_bytes = 0

    def __init__(self, text: str) -> None:
        self._text = text

    def matcher(self) -> Matcher:
        return TextMatcher(self._text)


class SlowBackend:
    """Makes masks of `slow` grammars until it is let go, and longer than the limit."""

    def __init__(self) -> None:
        self.let_go = threading.Event()

    def compile(self, grammar: Grammar) -> CompiledGrammar:
        return TextCompiled(grammar.text)

    def fill(
        self, matchers: Sequence[Matcher], masks: NDArray[np.int32], rows: Sequence[int]
    ) -> list[GrammarError | None]:
        (matcher,) = matchers
        assert isinstance(matcher, TextMatcher)
        end_s = time.thread_time() + 2 * LIMIT_S
        while matcher.text == "slow" and time.thread_time() < end_s:
            sum(range(100))
        if matcher.text == "slow":
            self.let_go.wait()
        masks[rows] = 1
        return [None]


class SlowBackends(Backends):
    def __init__(self, backend: SlowBackend) -> None:
        super().__init__(Vocabulary(tokens=(b"a", b"b"), control_ids=frozenset()))
        self._backend = backend

    def build(self, name: GrammarBackend) -> SlowBackend:
        return self._backend


@pytest.fixture
def backend() -> Iterator[SlowBackend]:
    backend = SlowBackend()
    yield backend
    backend.let_go.set()


@pytest.fixture
def maker(backend: SlowBackend) -> Iterator[GuideMaker]:
    maker = GuideMaker(
        lambda: SlowBackends(backend),
        cache_bytes=1 << 20,
        num_threads=NUM_MAKERS,
        step_limit_s=LIMIT_S,
    )
    yield maker
    maker.close()


def request(text: str) -> GenerationRequest:
    return GenerationRequest(
        prompt=np.zeros(1, np.int32).tobytes(),
        sampling=SamplingParams(seed=0),
        stop=StopParams(max_output_tokens=1),
        grammar=Grammar(backend=GrammarBackend.XGRAMMAR, text=text),
    )


def prepared_of(maker: GuideMaker, number: int) -> list[Prepared]:
    """Waits for so many requests."""
    prepared: list[Prepared] = []
    deadline = time.monotonic() + DEADLINE_S
    while len(prepared) < number:
        assert time.monotonic() < deadline
        prepared += maker.take_prepared()
        time.sleep(0.001)
    return prepared


def test_a_first_mask_over_the_limit_fails_its_request_and_holds_up_none(maker: GuideMaker):
    for number in range(NUM_MAKERS + 1):
        maker.start(number, request("slow"))
    maker.start(9, request("quick"))

    by_id = {each.request_id: each for each in prepared_of(maker, NUM_MAKERS + 2)}

    (guide,) = by_id.pop(9).guides
    assert guide.restricts
    for each in by_id.values():
        assert each.error is not None
        assert each.error.reason is ErrorReason.CONSTRAINT_TOO_COMPLEX
        assert each.error.metadata == {"limit_ms": "20"}


def test_threads_at_such_masks_are_bounded_and_end_with_them(
    maker: GuideMaker, backend: SlowBackend
) -> None:
    for number in range(MAX_LEFT_BEHIND):
        assert not maker.is_overloaded
        maker.start(number, request("slow"))
        prepared_of(maker, 1)

    assert maker.is_overloaded

    backend.let_go.set()
    deadline = time.monotonic() + DEADLINE_S
    while maker.is_overloaded:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    assert maker.take_prepared() == []


def test_a_first_mask_that_ended_over_the_limit_fails_too(
    maker: GuideMaker, backend: SlowBackend
) -> None:
    backend.let_go.set()
    others = set(threading.enumerate())
    maker.start(1, request("slow"))
    (thread,) = set(threading.enumerate()) - others
    maker.close()
    thread.join(DEADLINE_S)

    (prepared,) = maker.take_prepared()

    assert prepared.error is not None
    assert prepared.error.reason is ErrorReason.CONSTRAINT_TOO_COMPLEX
