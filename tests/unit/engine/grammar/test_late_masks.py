"""Masks that take long, through the whole loop: their outputs wait, and nobody else does."""

from dataclasses import replace
from itertools import pairwise

import pytest
from msgspec.structs import replace as replace_all

from antiphon_engine.api.config import EngineConfig
from antiphon_engine.api.errors import ErrorReason
from antiphon_engine.api.grammar import Grammar, GrammarBackend
from antiphon_engine.api.messages import (
    Cancel,
    FinishReason,
    GenerationRequest,
    Hold,
    Release,
    SamplingParams,
    StopParams,
)
from support.grammars import regex
from support.guided_loop import (
    GuidedModel,
    ahead,
    only_failure,
    reason,
    run_to_ends,
    run_until_ended,
)
from support.loop_harness import LoopHarness

_DEPTH = 16
_LADDER = "\n".join(f"r{n} ::= r{n + 1} r{n + 1} | r{n + 1}" for n in range(_DEPTH))
AMBIGUOUS = Grammar(
    backend=GrammarBackend.XGRAMMAR,
    text=f'root ::= r0 "b"\n{_LADDER}\nr{_DEPTH} ::= "a" | ""',
)
"""`a*b` in so many ways that each token takes longer than the last: soon tens of milliseconds."""
SAME = regex("a*b", GrammarBackend.LLGUIDANCE)
NUM_BEFORE = 11
"""Characters that were said before a request is taken up again: its first mask is late."""
SAID = "aaab"
NUM_SEEDS = 3

each_depth = pytest.mark.parametrize("depth", [0, 1, 2])


def patient(depth: int) -> EngineConfig:
    """Settings under which no mask takes too long."""
    return replace(ahead(depth), grammar_step_limit_ms=60_000, block_tokens=8)


def late(
    model: GuidedModel, grammar: Grammar = AMBIGUOUS, sampling: SamplingParams | None = None
) -> GenerationRequest:
    before = [model.ids("a")[0]] * NUM_BEFORE
    request = model.request(grammar, sampling=sampling, prompt=(5, 6, 7, *before))
    return replace_all(request, num_resumed_tokens=NUM_BEFORE)


def saying(model: GuidedModel) -> list[int]:
    """What the model wants: the text in the smallest tokens."""
    return [model.ids(character)[0] for character in SAID]


def places(harness: LoopHarness, request_id: int) -> list[int]:
    """In which steps an output's tokens came."""
    return [
        place
        for place, news in enumerate(harness.heard.steps)
        if request_id in memoryview(news.request_ids).cast("Q")
    ]


def step_until(harness: LoopHarness, request_id: int, num_tokens: int) -> None:
    while len(harness.heard.tokens[request_id, 0]) < num_tokens:
        harness.step_or_wait()


@each_depth
def test_others_go_on_while_a_mask_is_made(model: GuidedModel, depth: int) -> None:
    long = StopParams(max_output_tokens=400)
    requests = {1: late(model), 2: model.request(None, stop=long)}

    with model.running(saying(model), patient(depth)) as harness:
        harness.submit(1, requests[1])
        step_until(harness, 1, num_tokens=1)
        harness.submit(2, requests[2])
        run_until_ended(harness, requests)
        harness.run()
        stats = harness.stats()

    assert model.text(harness.heard.tokens[1, 0]) == SAID
    assert reason(harness, 1) is FinishReason.END_ID
    assert len(harness.heard.tokens[2, 0]) == 400
    assert stats.num_late_masks_total >= 1
    slow, plain = places(harness, 1), places(harness, 2)
    between = [sum(before < place < after for place in plain) for before, after in pairwise(slow)]
    assert max(between) >= 2, "every step waited for its masks"
    slow_times, plain_times = (harness.heard.ended[number, 0][0].times for number in (1, 2))
    assert slow_times is not None
    assert slow_times.num_mask_waits >= 1
    assert slow_times.mask_wait_ns > 0
    assert plain_times is not None
    assert plain_times.num_mask_waits == plain_times.mask_wait_ns == 0
    assert stats.num_running == stats.num_blocks_used == 0


@each_depth
def test_a_late_mask_changes_no_draw(model: GuidedModel, depth: int) -> None:
    # Each token that counts makes the next as likely or as unlikely as the other.
    requests = {}
    bias = {model.ids("b")[0]: 9.0}
    for seed in range(NUM_SEEDS):
        sampling = SamplingParams(
            seed=seed, temperature=1.0, frequency_penalty=1.0, logit_bias=bias
        )
        for grammar in (AMBIGUOUS, SAME):
            request = replace_all(late(model, grammar, sampling), top_logprobs=1)
            requests[len(requests)] = request

    with model.running(saying(model), patient(depth)) as harness:
        run_to_ends(harness, requests)
        harness.run()
        stats = harness.stats()

    heard = harness.heard
    assert stats.num_late_masks_total >= 1
    assert len({tuple(heard.tokens[number, 0]) for number in requests}) > 1
    for number in range(0, 2 * NUM_SEEDS, 2):
        assert heard.tokens[number, 0] == heard.tokens[number + 1, 0]
        assert len(heard.logprobs[number, 0]) == len(heard.tokens[number, 0])


@each_depth
@pytest.mark.parametrize("every", [1, 3])
def test_pauses_and_holds_beside_late_masks_change_nothing(
    model: GuidedModel, depth: int, every: int
) -> None:
    config = replace(patient(depth), fault_pause_every=every)
    requests = {1: late(model), 2: model.request(None)}

    with model.running(saying(model), config) as harness:
        for request_id, request in requests.items():
            harness.submit(request_id, request)
        for num_tokens in (1, 2, 3):
            step_until(harness, 1, num_tokens)
            harness.send(Hold(request_id=1))
            for _ in range(3):
                harness.step_or_wait()
            harness.send(Release(request_id=1))
        run_until_ended(harness, requests)
        harness.run()
        stats = harness.stats()

    assert model.text(harness.heard.tokens[1, 0]) == SAID
    # The end is no token of the grammar's.
    assert stats.num_matched_tokens_total == NUM_BEFORE + len(SAID)
    assert stats.num_running == stats.num_blocks_used == 0


@each_depth
def test_a_request_may_end_while_its_mask_is_late(model: GuidedModel, depth: int) -> None:
    with model.running(saying(model), patient(depth)) as harness:
        harness.submit(1, late(model))
        while not harness.stats().num_late_masks_total:
            harness.step_or_wait()
        harness.send(Cancel(request_id=1))
        run_to_ends(harness, {2: model.request(SAME)})
        harness.run()
        stats = harness.stats()

    (ended,) = harness.heard.ended[1, 0]
    assert ended.reason is FinishReason.CANCELLED
    assert ended.num_tokens == NUM_BEFORE + len(harness.heard.tokens[1, 0])
    # It waited as it ended.
    assert ended.times is not None
    assert ended.times.num_mask_waits >= 1
    assert ended.times.mask_wait_ns > 0
    assert model.text(harness.heard.tokens[2, 0]) == SAID
    assert stats.num_running == stats.num_blocks_used == 0


@each_depth
def test_a_mask_over_the_limit_fails_its_request_alone(model: GuidedModel, depth: int) -> None:
    config = replace(patient(depth), grammar_step_limit_ms=6)
    long = StopParams(max_output_tokens=300)

    with model.running(saying(model), config) as harness:
        requests = {1: late(model), 2: model.request(None, stop=long)}
        run_to_ends(harness, requests)
        harness.run()
        stats = harness.stats()

    failed = only_failure(harness, 1)
    assert failed.reason == ErrorReason.CONSTRAINT_TOO_COMPLEX
    assert failed.metadata == {"limit_ms": "6"}
    assert SAID.startswith(model.text(harness.heard.tokens[1, 0]))
    assert len(harness.heard.tokens[2, 0]) == 300
    assert stats.num_running == stats.num_blocks_used == 0
