"""Compiled grammars are kept within a number of bytes, however many there are."""

import gc
import os
import weakref
from dataclasses import replace

import numpy as np
import pytest

from antiphon_engine.api.config import EngineConfig
from antiphon_engine.api.errors import ErrorReason
from antiphon_engine.api.grammar import Grammar, GrammarBackend
from antiphon_engine.grammar.backends import Backends
from antiphon_engine.grammar.base import GrammarError, mask_words
from antiphon_engine.grammar.guide import Guide
from antiphon_engine.grammar.llguidance_backend import LlguidanceCompiled
from antiphon_engine.grammar.preparing import GrammarCache
from antiphon_engine.grammar.xgrammar_backend import XgrammarCompiled
from support.grammars import regex
from support.guided_loop import (
    GuidedModel,
    run_to_ends,
)
from support.process_figures import memory_bytes

MAX_BYTES = 1000


class FakeCompiled:
    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes


class FakeBackends:
    """Compiles anything but `broken`; remembers what it has compiled, and keeps nothing of it."""

    def __init__(self) -> None:
        self.num_compiled = 0
        self.alive: weakref.WeakSet[FakeCompiled] = weakref.WeakSet()

    def compile(self, grammar: Grammar) -> FakeCompiled:
        self.num_compiled += 1
        if grammar.text == "broken":
            raise GrammarError(ErrorReason.UNSUPPORTED_CONSTRAINT, "It is broken.")
        compiled = FakeCompiled(100 - len(grammar.text))
        self.alive.add(compiled)
        return compiled


@pytest.fixture
def backends() -> FakeBackends:
    return FakeBackends()


def named(text: str) -> Grammar:
    return Grammar(backend=GrammarBackend.XGRAMMAR, text=text)


def test_what_is_kept_of_many_grammars_is_bounded(backends: FakeBackends) -> None:
    cache = GrammarCache(MAX_BYTES)

    for number in range(500):
        cache.compile(named(str(number)), backends)
        gc.collect(0)
        assert sum(100 for _ in backends.alive) <= MAX_BYTES

    assert backends.num_compiled == 500


def test_what_was_used_last_stays(backends: FakeBackends) -> None:
    cache = GrammarCache(MAX_BYTES)
    kept = cache.compile(named("kept"), backends)

    for number in range(50):
        cache.compile(named(str(number)), backends)
        assert cache.compile(named("kept"), backends) is kept

    assert backends.num_compiled == 51


@pytest.mark.parametrize("asked_for", ["last", "4"])
def test_a_grammar_that_grows_with_use_makes_room_at_the_next(
    backends: FakeBackends, asked_for: str
) -> None:
    cache = GrammarCache(MAX_BYTES)
    for number in range(5):
        cache.compile(named(str(number)), backends)
    for each in backends.alive:
        each.size_bytes = 400

    cache.compile(named(asked_for), backends)

    del each
    gc.collect()
    assert len(backends.alive) == (3 if asked_for == "last" else 2)


def test_what_does_not_compile_is_tried_again(backends: FakeBackends) -> None:
    cache = GrammarCache(MAX_BYTES)

    for _ in range(2):
        with pytest.raises(GrammarError):
            cache.compile(named("broken"), backends)

    assert backends.num_compiled == 2


@pytest.mark.parametrize("backend", list(GrammarBackend))
def test_requests_that_have_ended_leave_nothing_but_the_cache(
    model: GuidedModel, backend: GrammarBackend
) -> None:
    config = replace(EngineConfig(), grammar_cache_bytes=1)
    compiled = (XgrammarCompiled, LlguidanceCompiled)
    backends = Backends(model.backends.vocabulary, large_bytes=config.grammar_cache_bytes)
    before = _count(Guide, *compiled)

    with model.running("a", config, backends=backends) as harness:
        for first in range(0, 40, 8):
            run_to_ends(
                harness,
                {
                    number: model.request(regex(f"a{{1,3}}{number}", backend))
                    for number in range(first, first + 8)
                },
            )
            harness.run()

        # A thread of a loop before may have held one still.
        assert _count(Guide, *compiled) <= before


def test_even_the_smallest_grammars_count_for_what_they_take(model: GuidedModel) -> None:
    backend = model.backends[GrammarBackend.LLGUIDANCE]
    first_mask = np.zeros((1, mask_words(model.backends.vocabulary.size)), np.int32)
    gc.collect()
    before_bytes = memory_bytes(os.getpid())

    compiled = [
        backend.compile(regex(f"[a-z]{{3}}{number}", GrammarBackend.LLGUIDANCE))
        for number in range(300)
    ]
    for each in compiled:
        backend.fill([each.matcher()], first_mask, [0])

    grown_by = memory_bytes(os.getpid()) - before_bytes
    assert grown_by < 1.5 * sum(each.size_bytes for each in compiled)


def _count(*kinds: type) -> int:
    gc.collect()
    return sum(type(each) in kinds for each in gc.get_objects())
