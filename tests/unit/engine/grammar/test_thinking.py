"""Reasoning before an answer: where the grammar begins, and how a budget ends it."""

from array import array
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from antiphon_engine.api.errors import ErrorReason
from antiphon_engine.api.grammar import GrammarBackend, Thinking
from antiphon_engine.api.messages import FinishReason, StopParams
from antiphon_engine.grammar.thinking import MAX_BLANKS, EndMarker, Phase, ThinkingGate
from antiphon_engine.grammar.vocabulary import Vocabulary
from support.grammars import regex
from support.guided_loop import (
    GuidedModel,
    ahead,
    only_failure,
    reason,
    run_to_ends,
)

ONE_TOKEN = "</think>"
MANY_TOKENS = "[/THINK]"
ANSWER = "(yes|no)"
BLANKS = " \t\r\n"

each_backend = pytest.mark.parametrize("backend", list(GrammarBackend))
each_depth = pytest.mark.parametrize("depth", [0, 1, 2])
each_marker = pytest.mark.parametrize("marker", [ONE_TOKEN, MANY_TOKENS])


def small_vocabulary(*more: bytes) -> Vocabulary:
    letters = [bytes([byte]) for byte in b"<>/abk \n"]
    return Vocabulary(tokens=(*letters, *more), control_ids=frozenset())


def gate_of(
    end_text: str, vocabulary: Vocabulary, *, max_tokens: int | None = None
) -> ThinkingGate:
    thinking = Thinking(end_text=end_text, max_tokens=max_tokens)
    return ThinkingGate(thinking, EndMarker.of(end_text, vocabulary))


@each_backend
@each_depth
@each_marker
def test_the_grammar_holds_behind_the_marker_and_not_before(
    model: GuidedModel, backend: GrammarBackend, depth: int, marker: str
) -> None:
    said = f"no number is larger{marker}\n\nyes and so on"
    request = model.request(regex(ANSWER, backend), thinking=Thinking(end_text=marker))

    with model.running(said, ahead(depth)) as harness:
        run_to_ends(harness, {1: request})
        stats = harness.stats()

    assert model.text(harness.heard.tokens[1, 0]) == f"no number is larger{marker}\n\nyes"
    assert reason(harness, 1) is FinishReason.END_ID
    assert stats.num_matched_tokens_total == len(model.ids("yes"))


@each_backend
def test_without_thinking_the_grammar_holds_from_the_first_token(
    model: GuidedModel, backend: GrammarBackend
) -> None:
    with model.running("hello</think>\n\nyes") as harness:
        run_to_ends(harness, {1: model.request(regex(ANSWER, backend))})
        stats = harness.stats()

    answer = model.text(harness.heard.tokens[1, 0])
    assert answer in ("yes", "no")
    assert stats.num_matched_tokens_total == len(harness.heard.tokens[1, 0]) - 1


@each_backend
@each_depth
def test_an_output_that_is_used_up_by_its_reasoning_has_no_answer(
    model: GuidedModel, backend: GrammarBackend, depth: int
) -> None:
    stop = StopParams(max_output_tokens=9, end_ids=(model.end_id,))
    request = model.request(
        regex(ANSWER, backend), thinking=Thinking(end_text=ONE_TOKEN), stop=stop
    )

    with model.running("hello world", ahead(depth)) as harness:
        run_to_ends(harness, {1: request})
        stats = harness.stats()

    assert reason(harness, 1) is FinishReason.MAX_OUTPUT_TOKENS
    assert ONE_TOKEN not in model.text(harness.heard.tokens[1, 0])
    assert stats.num_matched_tokens_total == 0


@each_depth
@each_marker
@pytest.mark.parametrize("guided", [True, False])
def test_a_budget_ends_the_reasoning_where_the_model_does_not(
    model: GuidedModel, depth: int, marker: str, guided: bool
) -> None:
    request = model.request(
        regex(ANSWER) if guided else None, thinking=Thinking(end_text=marker, max_tokens=5)
    )

    with model.running("e", ahead(depth)) as harness:
        run_to_ends(harness, {1: request})

    text = model.text(harness.heard.tokens[1, 0])
    assert text.startswith("eeeee" + marker)
    answer = text.removeprefix("eeeee" + marker).strip(BLANKS)
    assert answer in ("yes", "no") if guided else answer.startswith("eee")


def test_a_budget_of_nothing_begins_with_the_marker(model: GuidedModel) -> None:
    thinking = Thinking(end_text=ONE_TOKEN, max_tokens=0)

    with model.running("e") as harness:
        run_to_ends(harness, {1: model.request(regex(ANSWER), thinking=thinking)})

    text = model.text(harness.heard.tokens[1, 0])
    assert text.removeprefix("</think>").strip(BLANKS) in ("yes", "no")
    assert text.startswith("</think>")


def test_a_model_that_wants_to_end_in_its_reasoning_does_not_under_a_grammar(
    model: GuidedModel,
) -> None:
    thinking = Thinking(end_text=ONE_TOKEN, max_tokens=4)

    with model.running([model.end_id]) as harness:
        run_to_ends(harness, {1: model.request(regex(ANSWER), thinking=thinking)})
        run_to_ends(harness, {2: model.request(None, thinking=thinking)})

    assert model.text(harness.heard.tokens[1, 0]).split(ONE_TOKEN)[1].strip(BLANKS) in ("yes", "no")
    assert harness.heard.tokens[2, 0] == [model.end_id]


def test_blanks_behind_the_marker_are_bounded(model: GuidedModel) -> None:
    thinking = Thinking(end_text=ONE_TOKEN, max_tokens=1)

    with model.running([model.ids(" ")[0]]) as harness:
        run_to_ends(harness, {1: model.request(regex(ANSWER), thinking=thinking)})

    answer = model.text(harness.heard.tokens[1, 0]).split(ONE_TOKEN)[1]
    assert answer.strip(" ") in ("yes", "no")
    assert answer.index(answer.strip(" ")) <= MAX_BLANKS


@each_depth
def test_pauses_change_nothing(model: GuidedModel, depth: int) -> None:
    said = "no number is larger[/THINK]\n\nyes"
    request = model.request(regex(ANSWER), thinking=Thinking(end_text=MANY_TOKENS))
    config = replace(ahead(depth), fault_pause_every=2, block_tokens=8)

    with model.running(said, config) as harness:
        run_to_ends(harness, {1: request, 2: model.request(None)})
        stats = harness.stats()

    assert model.text(harness.heard.tokens[1, 0]) == said
    assert stats.num_matched_tokens_total == len(model.ids("yes"))
    assert stats.num_preemptions_total > 0


@each_backend
def test_it_is_taken_up_again_at_any_place(model: GuidedModel, backend: GrammarBackend) -> None:
    ids = model.ids("the larger[/THINK]\n\nyes")
    uncut = model.request(
        regex(ANSWER, backend), thinking=Thinking(end_text=MANY_TOKENS, max_tokens=20)
    )

    for num in range(1, len(ids) + 1):
        with model.running(ids[num:] or [3]) as harness:
            run_to_ends(harness, {1: uncut.resumed_behind(array("i", ids[:num]))})

        assert [*ids[:num], *harness.heard.tokens[1, 0][:-1]] == ids
        assert reason(harness, 1) is FinishReason.END_ID


def test_a_marker_that_can_not_be_spelled_has_no_budget() -> None:
    vocabulary = Vocabulary(tokens=(b"a", b"b"), control_ids=frozenset())

    assert not all(EndMarker.of("</t>", vocabulary).spellings)


def test_a_thinking_without_a_marker_is_refused(model: GuidedModel) -> None:
    with model.running("one") as harness:
        run_to_ends(harness, {1: model.request(None, thinking=Thinking(end_text="", max_tokens=2))})

    assert only_failure(harness, 1).reason == ErrorReason.INVALID_FIELD


def test_tokens_that_end_the_marker_and_begin_the_answer_are_known() -> None:
    vocabulary = small_vocabulary(b"k>", b"k>a", b"k>\n", b"k>\nb", b"</k>a", b"</k> ", b"b</k>a")
    gate = gate_of("</k>", vocabulary)

    def overrunning() -> set[bytes]:
        return {vocabulary.tokens[i] for i in gate.overrunning_ids}

    assert overrunning() == {b"</k>a", b"b</k>a"}
    gate.accept(b"<")
    gate.accept(b"/")
    assert overrunning() == {b"k>a", b"k>\nb", b"</k>a", b"b</k>a"}
    assert not gate.accept(b"k>\n")
    assert gate.phase is Phase.BLANKS
    assert gate.accept(b"a")
    assert gate.phase is Phase.ANSWER


@each_backend
@each_depth
def test_a_token_that_ends_the_marker_and_begins_the_answer_is_not_drawn(
    model: GuidedModel, backend: GrammarBackend, depth: int
) -> None:
    both_id = next(
        token_id
        for token_id, token in enumerate(model.backends.vocabulary.tokens)
        if len(token) > 5 and token.isalpha() and token.isascii()
    )
    word = model.text([both_id])
    marker, answer = word[:2], word[2:]
    thinking = Thinking(end_text=marker, max_tokens=5)
    request = model.request(regex(f"{answer}|{answer}s", backend), thinking=thinking)

    with model.running([both_id], ahead(depth)) as harness:
        run_to_ends(harness, {1: request})
        stats = harness.stats()

    said = harness.heard.tokens[1, 0]
    assert both_id not in said
    assert model.text(said).split(marker, 1)[1].strip(BLANKS) in (answer, f"{answer}s")
    assert reason(harness, 1) is FinishReason.END_ID
    assert model.text(said[-stats.num_matched_tokens_total - 1 :]).startswith(answer)


def test_a_budget_that_runs_out_inside_of_the_marker_says_its_rest() -> None:
    vocabulary = small_vocabulary(b"</", b"k>")
    gate = gate_of("</k>", vocabulary, max_tokens=2)

    gate.accept(b"a")
    assert gate.forced_id is None
    gate.accept(b"</")
    assert gate.forced_id == vocabulary.tokens.index(b"k>")
    gate.accept(b"k>")
    assert gate.phase is Phase.BLANKS
    assert gate.forced_id is None


def test_a_fork_goes_its_own_way() -> None:
    gate = gate_of("</k>", small_vocabulary())
    gate.accept(b"<")

    other = gate.fork()
    other.accept(b"/k>")

    assert gate.phase is Phase.REASONING
    assert other.phase is Phase.BLANKS


@settings(deadline=None, max_examples=150)
@given(
    marker=st.text("ab<", min_size=1, max_size=5),
    pieces=st.lists(st.text("ab<", min_size=1, max_size=4), max_size=8),
)
def test_the_marker_is_found_as_a_search_of_the_text_finds_it(
    marker: str, pieces: list[str]
) -> None:
    tokens = tuple(piece.encode() for piece in pieces) + tuple(c.encode() for c in "ab<")
    vocabulary = Vocabulary(tokens=tokens, control_ids=frozenset())
    gate = gate_of(marker, vocabulary)
    text = ""

    for piece in pieces:
        place = (text + piece).find(marker)
        runs_over = place >= 0 and place + len(marker) < len(text + piece)
        token_id = vocabulary.tokens.index(piece.encode())
        assert (token_id in gate.overrunning_ids) == runs_over
        begins_answer = gate.accept(piece.encode())
        text += piece
        assert begins_answer == runs_over
        if place >= 0:
            assert gate.phase is (Phase.ANSWER if runs_over else Phase.BLANKS)
            return
        assert gate.phase is Phase.REASONING
        spelled = b"".join(tokens[i] for i in gate.marker.spellings[_said(text, marker)])
        assert (text.encode() + spelled).endswith(marker.encode())


def _said(text: str, marker: str) -> int:
    return next(n for n in range(len(marker) - 1, -1, -1) if text.endswith(marker[:n]))


def test_masks_of_blanks_name_blank_tokens_alone() -> None:
    vocabulary = small_vocabulary(b"  ", b" a", b"\n\n", b" " * (MAX_BLANKS + 1))
    marker = EndMarker.of("</k>", vocabulary)

    def of(words: NDArray[np.int32]) -> set[bytes]:
        bits = np.unpackbits(words.view(np.uint8), bitorder="little")
        return {vocabulary.tokens[i] for i in np.flatnonzero(bits)}

    assert of(marker.blank_words) == {b" ", b"\n", b"  ", b"\n\n"}
    assert of(marker.blank_led_words) == of(marker.blank_words) | {b" a", b" " * (MAX_BLANKS + 1)}
