"""What guides outputs is let go of however they end: counted, with no collector to help out."""

import gc
import time
from collections.abc import Iterator
from dataclasses import replace

import msgspec
import pytest

from antiphon_engine.api.errors import ErrorReason
from antiphon_engine.api.grammar import Grammar, GrammarBackend, Thinking
from antiphon_engine.api.messages import (
    Cancel,
    FinishOutput,
    Hold,
    Release,
    StopParams,
)
from support.grammars import broken, regex
from support.guided_loop import (
    VOCABULARY_SIZE,
    GuidedModel,
    ahead,
    only_failure,
    run_until_ended,
)
from support.late_masks import ReluctantFiller
from support.loop_harness import LoopHarness, running_loop_of
from support.scripted_engine import Script, load_scripted

_DEADLINE_S = 60.0

each_backend = pytest.mark.parametrize("backend", list(GrammarBackend))
each_depth = pytest.mark.parametrize("depth", [0, 2])


@pytest.fixture(autouse=True)
def _without_collector() -> Iterator[None]:
    """What holds itself would else be found at some time or other: not in an engine at work."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def letters(backend: GrammarBackend) -> Grammar:
    return regex("[a-z]{40}[0-9]", backend)


def step_until_guided(harness: LoopHarness, num_guides: int) -> None:
    """Steps until so many guides are held; threads that are at work hold theirs a while longer.

    As it asks each time, the engine never rests, which is when it would collect.
    """
    deadline = time.monotonic() + _DEADLINE_S
    while (held := harness.stats().num_guides) != num_guides:
        assert time.monotonic() < deadline, f"{held} guides are held"
        time.sleep(0.001)


def step_until_begun(harness: LoopHarness, request_id: int, num_tokens: int = 3) -> None:
    deadline = time.monotonic() + _DEADLINE_S
    while len(harness.heard.tokens[request_id, 0]) < num_tokens:
        assert time.monotonic() < deadline
        harness.step_or_wait()


@each_backend
@each_depth
def test_outputs_that_end_by_themselves(
    model: GuidedModel, backend: GrammarBackend, depth: int
) -> None:
    one = model.request(letters(backend))
    requests = {1: one, 2: msgspec.structs.replace(one, num_outputs=3)}

    with model.running("hello", ahead(depth)) as harness:
        for request_id, request in requests.items():
            harness.submit(request_id, request)
            harness.send(Hold(request_id=request_id))
        step_until_guided(harness, 4)
        harness.send(*(Release(request_id=request_id) for request_id in requests))
        run_until_ended(harness, requests)

        step_until_guided(harness, 0)


@each_backend
@each_depth
def test_outputs_that_are_cancelled_or_finished_by_their_caller_at_any_time(
    model: GuidedModel, backend: GrammarBackend, depth: int
) -> None:
    thinking = Thinking(end_text="</think>", max_tokens=300)
    request = model.request(
        letters(backend),
        thinking=thinking,
        stop=StopParams(max_output_tokens=400, end_ids=(model.end_id,)),
    )

    with model.running("hello", ahead(depth)) as harness:
        for request_id in (1, 2, 3, 4):
            harness.submit(request_id, request)
        # Its guide is being made.
        harness.send(Cancel(request_id=1))
        for request_id in (2, 3, 4):
            step_until_begun(harness, request_id)
            harness.send(Hold(request_id=request_id))
        step_until_guided(harness, 3)
        harness.send(Cancel(request_id=2))
        harness.send(FinishOutput(request_id=3, output_index=0, keep_tokens=1))
        step_until_guided(harness, 1)
        harness.send(Release(request_id=4))
        step_until_begun(harness, 4, len(harness.heard.tokens[4, 0]) + 3)
        harness.send(Cancel(request_id=4))

        step_until_guided(harness, 0)


def test_an_output_that_sits_out_as_it_is_cancelled(model: GuidedModel) -> None:
    config = ahead(0)
    script = Script(texts={"*": model.ids("hello")}, vocabulary_size=VOCABULARY_SIZE)
    scripted = load_scripted(script, config)
    with running_loop_of(
        scripted, config, checkpoint=str(model.checkpoint), filler=ReluctantFiller
    ) as harness:
        harness.submit(1, model.request(letters(GrammarBackend.LLGUIDANCE)))
        step_until_begun(harness, 1)
        harness.send(Cancel(request_id=1))

        step_until_guided(harness, 0)


FAILING = {
    "no token continues": (
        regex("a\U00100000", GrammarBackend.LLGUIDANCE),
        ErrorReason.UNSUPPORTED_CONSTRAINT,
    ),
    "no token begins": (
        regex("\U00100000", GrammarBackend.XGRAMMAR),
        ErrorReason.UNSUPPORTED_CONSTRAINT,
    ),
    "no grammar": (broken(), ErrorReason.UNSUPPORTED_CONSTRAINT),
    "too much": (
        regex(r"((x{1,500}){1,500}){1,500}", GrammarBackend.LLGUIDANCE),
        ErrorReason.CONSTRAINT_TOO_COMPLEX,
    ),
}


@each_depth
@pytest.mark.parametrize("name", FAILING)
def test_outputs_that_fail(speechless: GuidedModel, name: str, depth: int) -> None:
    grammar, reason = FAILING[name]
    stop = StopParams(max_output_tokens=500, end_ids=(speechless.end_id,))
    requests = {1: speechless.request(grammar, stop=stop)}

    with speechless.running("xx", ahead(depth)) as harness:
        harness.submit(1, requests[1])
        run_until_ended(harness, requests)

        step_until_guided(harness, 0)
        assert only_failure(harness, 1).reason == reason


@each_depth
def test_outputs_whose_first_mask_or_a_later_one_takes_too_long(
    model: GuidedModel, depth: int
) -> None:
    config = replace(ahead(depth), grammar_step_limit_ms=0)
    requests = {number: model.request(regex("[^a]*[^b]*c")) for number in (1, 2)}

    with model.running("one two", config) as harness:
        for request_id, request in requests.items():
            harness.submit(request_id, request)
        run_until_ended(harness, requests)

        step_until_guided(harness, 0)
        assert only_failure(harness, 1).reason == ErrorReason.CONSTRAINT_TOO_COMPLEX
