"""A resumed output's draws and limits are those of the output that was never interrupted."""

from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon_engine.api.messages import (
    Cancel,
    FinishOutput,
    FinishReason,
    GenerationRequest,
    SamplingParams,
    StopParams,
)
from antiphon_engine.request_checks import find_fault
from antiphon_engine.resumption import rest_of, shifted_seed
from support.core_values import seeded_uniform
from support.loop_harness import request, running_loop
from support.scripted_engine import Script

UINT64 = st.integers(0, 2**64 - 1)


@given(seed=UINT64, num_tokens=st.integers(0, 2**31), position=st.integers(0, 2**20))
@settings(deadline=None, max_examples=100)
def test_shifted_seed_draws_what_the_seed_draws_later(
    seed: int, num_tokens: int, position: int
) -> None:
    later = seeded_uniform(seed, 0, position + num_tokens)

    assert seeded_uniform(shifted_seed(seed, num_tokens), 0, position) == later


def resumed(num_resumed: int, *, prompt: int = 4, num_outputs: int = 1) -> GenerationRequest:
    return GenerationRequest(
        prompt=array("i", range(1, prompt + 1)).tobytes(),
        sampling=SamplingParams(seed=3),
        stop=StopParams(max_output_tokens=8, min_output_tokens=5),
        num_outputs=num_outputs,
        num_resumed_tokens=num_resumed,
    )


def test_limits_of_the_rest_are_what_is_left_of_them() -> None:
    few, many = rest_of(resumed(3)).stop, rest_of(resumed(6, prompt=9)).stop

    assert (few.max_output_tokens, few.min_output_tokens) == (5, 2)
    assert (many.max_output_tokens, many.min_output_tokens) == (2, 0)
    assert rest_of(resumed(0)) == resumed(0)


@pytest.mark.parametrize(
    "asked",
    [resumed(-1), resumed(4), resumed(8, prompt=20), resumed(1, num_outputs=2)],
    ids=["negative", "no prompt left", "nothing left to say", "several outputs"],
)
def test_what_can_not_be_taken_up_again_is_refused(asked: GenerationRequest) -> None:
    fault = find_fault(asked, vocabulary_size=100)

    assert fault is not None
    assert "resumed" in fault.message or "num_outputs" in fault.message


@pytest.mark.parametrize("num_resumed", [1, 3])
def test_an_ended_output_counts_what_was_generated_before(num_resumed: int) -> None:
    with running_loop(Script(texts={"*": [5]})) as harness:
        stop = StopParams(max_output_tokens=8)
        asked = [request(1, 2, *[5] * num_resumed, stop=stop, num_resumed=num_resumed)] * 3
        for request_id, each in enumerate(asked, start=1):
            harness.submit(request_id, each)
        harness.step()
        harness.send(Cancel(request_id=2))
        harness.send(FinishOutput(request_id=3, output_index=0, keep_tokens=num_resumed))
        harness.run()

        assert len(harness.heard.tokens[1, 0]) == 8 - num_resumed
        ends = [harness.heard.ended[request_id, 0][0] for request_id in (1, 2, 3)]
        assert [ended.reason for ended in ends] == [
            FinishReason.MAX_OUTPUT_TOKENS,
            FinishReason.CANCELLED,
            FinishReason.FINISHED_BY_CALLER,
        ]
        told = len(harness.heard.tokens[2, 0])
        assert [ended.num_tokens for ended in ends] == [8, num_resumed + told, num_resumed]


def test_cached_tokens_of_the_output_are_no_cached_prompt() -> None:
    with running_loop(Script(texts={"*": [5]})) as harness:
        prompt = range(1, 65)
        harness.submit(1, request(*prompt))
        harness.run()
        stop = StopParams(max_output_tokens=41)
        harness.submit(2, request(*prompt, stop=stop, num_resumed=40))
        harness.run()

        assert [s.cached_prompt_tokens for s in harness.heard.started[2]] == [24]
