"""Grammars whose compilation takes long, through the whole loop: nobody else waits for them."""

import threading
from collections.abc import Iterator

import pytest

from antiphon_engine.api.grammar import Grammar
from antiphon_engine.api.messages import Cancel, FinishReason
from antiphon_engine.grammar.backends import Backends
from antiphon_engine.grammar.base import CompiledGrammar
from support.grammars import regex
from support.guided_loop import (
    GuidedModel,
    ahead,
    reason,
    run_to_ends,
    run_until_ended,
)

SLOW = regex("slow|steady")
DEADLINE_S = 60.0
each_depth = pytest.mark.parametrize("depth", [0, 1, 2])


class HeldUp(Backends):
    """Compiles one grammar when it is let go, and others at once."""

    def __init__(self, backends: Backends) -> None:
        super().__init__(backends.vocabulary)
        self.begun = threading.Event()
        self.let_go = threading.Event()

    def compile(self, grammar: Grammar) -> CompiledGrammar:
        if grammar == SLOW:
            self.begun.set()
            assert self.let_go.wait(DEADLINE_S)
        return super().compile(grammar)


@pytest.fixture
def held_up(model: GuidedModel) -> Iterator[HeldUp]:
    backends = HeldUp(model.backends)
    yield backends
    backends.let_go.set()


@each_depth
def test_others_go_on_while_a_grammar_is_compiled(
    model: GuidedModel, held_up: HeldUp, depth: int
) -> None:
    slow = {1: model.request(SLOW)}

    with model.running("steady", ahead(depth), backends=held_up) as harness:
        harness.submit(1, slow[1])
        harness.step()
        assert held_up.begun.wait(DEADLINE_S)
        run_to_ends(harness, {2: model.request(None), 3: model.request(regex("s[a-z]{5}"))})
        meanwhile = harness.stats()
        assert (1, 0) not in harness.heard.ended
        held_up.let_go.set()
        run_until_ended(harness, slow)

    assert len(harness.heard.tokens[2, 0]) == 60
    assert model.text(harness.heard.tokens[3, 0]) == "steady"
    assert meanwhile.num_waiting == 1
    assert model.text(harness.heard.tokens[1, 0]) == "steady"
    assert reason(harness, 1) is FinishReason.END_ID


@each_depth
def test_a_request_that_ends_while_its_grammar_is_compiled_is_told_of_it_at_once(
    model: GuidedModel, held_up: HeldUp, depth: int
) -> None:
    slow = {1: model.request(SLOW)}

    with model.running("steady", ahead(depth), backends=held_up) as harness:
        harness.submit(1, slow[1])
        harness.step()
        assert held_up.begun.wait(DEADLINE_S)
        harness.send(Cancel(request_id=1))
        run_until_ended(harness, slow)
        held_up.let_go.set()
        run_to_ends(harness, {2: model.request(SLOW)})

    assert reason(harness, 1) is FinishReason.CANCELLED
    assert not harness.heard.tokens[1, 0]
    assert model.text(harness.heard.tokens[2, 0]) == "steady"
