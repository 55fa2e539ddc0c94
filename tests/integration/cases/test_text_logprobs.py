"""Log-probabilities keep step with the tokens and the text, however that is held back or cut."""

from collections.abc import Sequence
from itertools import pairwise

import grpc
import numpy as np
import pytest
from antiphon.v1.inference_pb2 import GenerateRequest
from antiphon.v1.types_pb2 import (
    FinishReason,
    GenerationConfig,
    Output,
    OutputOptions,
    Prompt,
    SamplingParams,
    StopConditions,
    TokenIds,
)

from support.answers import LIMIT_S, ask, ask_in_session
from support.forced_texts import Speaker
from support.logit_reference import LogitReference
from support.server import RunningServer

pytestmark = pytest.mark.asyncio(loop_scope="session")

PROMPT = list(range(300, 320))
NEVER = "z" * 40
STOPS = pytest.mark.parametrize("stops", [[], [NEVER]], ids=["plain", "held"])


def config_for(stops: Sequence[str] = (), top_logprobs: int = 3) -> GenerationConfig:
    return GenerationConfig(
        sampling=SamplingParams(temperature=0.8, seed=7),
        stop=StopConditions(max_output_tokens=40, stop_strings=stops, ignore_eos=True),
        output=OutputOptions(top_logprobs=top_logprobs, token_ids=True, special_tokens=True),
    )


def request_for(stops: Sequence[str] = (), top_logprobs: int = 3) -> GenerateRequest:
    return GenerateRequest(
        prompt=Prompt(token_ids=TokenIds(ids=PROMPT)), config=config_for(stops, top_logprobs)
    )


def check_entries(output: Output, *, text: str, num_top: int = 3) -> None:
    """Checks that there is one entry a token and that they are what the text is made of."""
    assert [entry.chosen.token_id for entry in output.logprobs] == output.token_ids
    written = b"".join(entry.chosen.token for entry in output.logprobs)
    assert written.decode("utf-8", "replace") == text
    for entry in output.logprobs:
        told = {top.token_id: top.logprob for top in entry.top}
        assert len(told) == len(entry.top) == num_top
        assert all(top.logprob <= 0 for top in [entry.chosen, *entry.top])
        assert all(one.logprob >= other.logprob for one, other in pairwise(entry.top))
        if entry.chosen.token_id in told:
            assert entry.chosen.logprob == told[entry.chosen.token_id]
        elif num_top:
            assert entry.chosen.logprob <= entry.top[-1].logprob


@STOPS
async def test_entries_make_up_the_text_and_count_as_the_tokens(
    tiny: RunningServer, logits: LogitReference, stops: list[str]
) -> None:
    answer = await ask(tiny, request_for(stops))

    check_entries(answer.output, text=answer.text)
    assert answer.output.finish_reason == FinishReason.FINISH_REASON_MAX_OUTPUT_TOKENS
    assert answer.usage.output_tokens == len(answer.output.logprobs) == 40
    reference = logits.logprobs_behind(PROMPT, answer.output.token_ids)
    for entry, logprobs in zip(answer.output.logprobs, reference, strict=False):
        assert entry.chosen.logprob == pytest.approx(logprobs[entry.chosen.token_id], abs=1e-3)
        likeliest = np.sort(logprobs)[::-1][:3]
        assert [top.logprob for top in entry.top] == pytest.approx(likeliest.tolist(), abs=1e-3)


async def test_stop_strings_that_never_come_change_no_entry(tiny: RunningServer) -> None:
    plain = (await ask(tiny, request_for())).output
    held = (await ask(tiny, request_for([NEVER]))).output

    assert held.text == plain.text
    assert held.token_ids == plain.token_ids
    for one, other in zip(held.logprobs, plain.logprobs, strict=True):
        assert [t.token_id for t in one.top] == [t.token_id for t in other.top]
        values = [[t.logprob for t in (entry.chosen, *entry.top)] for entry in (one, other)]
        assert values[0] == pytest.approx(values[1], abs=1e-4)


async def test_prompts_are_told_of_cold_and_warm_as_the_reference_does(
    tiny: RunningServer, logits: LogitReference
) -> None:
    request = request_for()
    plain = [await ask(tiny, request) for _ in range(2)]
    request.config.output.prompt_logprobs = True
    told = [await ask(tiny, request) for _ in range(2)]

    reference = logits.logprobs_behind(PROMPT[:1], PROMPT[1:])
    for answer in told:
        entries = answer.prompt_logprobs
        assert [entry.chosen.token_id for entry in entries] == PROMPT[1:]
        for entry, logprobs in zip(entries, reference, strict=False):
            assert entry.chosen.logprob == pytest.approx(logprobs[entry.chosen.token_id], abs=1e-3)
            likeliest = np.sort(logprobs)[::-1][:3]
            assert [top.logprob for top in entry.top] == pytest.approx(likeliest.tolist(), abs=1e-3)
        assert answer.output.token_ids == plain[0].output.token_ids
        assert answer.usage.cached_prompt_tokens == 0
    assert plain[1].usage.cached_prompt_tokens > 0


@pytest.mark.parametrize("top_logprobs", [0, 1, 20])
async def test_as_many_entries_come_as_were_asked_for(
    tiny: RunningServer, top_logprobs: int
) -> None:
    answer = await ask(tiny, request_for(top_logprobs=top_logprobs))

    check_entries(answer.output, text=answer.text, num_top=top_logprobs)


async def test_more_entries_than_the_model_tells_are_refused(tiny: RunningServer) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await tiny.inference.Generate(request_for(top_logprobs=21), timeout=LIMIT_S)

    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "config.output.top_logprobs" in (caught.value.details() or "")


@STOPS
async def test_entries_of_a_turn_make_up_its_text(tiny: RunningServer, stops: list[str]) -> None:
    _, turn = await ask_in_session(tiny, "Hello.", config_for(stops))

    check_entries(turn.output, text=turn.output.text)
    assert turn.usage.output_tokens == len(turn.output.logprobs)


@pytest.mark.parametrize("include", [False, True])
async def test_entries_end_with_the_token_that_completes_the_stop_string(
    speaker: Speaker, include: bool
) -> None:
    said = speaker.spell("red green QXZJKWV blue 東京")
    kept = len("red green QXZJKWV")
    request = GenerateRequest(
        prompt=speaker.prompt_for([*said, speaker.end_id]),
        config=GenerationConfig(
            sampling=SamplingParams(temperature=0),
            stop=StopConditions(stop_strings=["QXZJKWV"], include_stop_string=include),
            output=OutputOptions(top_logprobs=2, token_ids=True),
        ),
    )

    answer = await ask(speaker.server, request)

    assert answer.text == "red green QXZJKWV"[: None if include else -7]
    assert answer.output.token_ids == said[:kept]
    check_entries(answer.output, text="red green QXZJKWV", num_top=2)
    assert answer.usage.output_tokens == kept


async def test_tokens_that_show_nothing_have_their_entries_too(speaker: Speaker) -> None:
    hidden = speaker.token_id("<|im_start|>")
    said = [hidden, *speaker.spell("東"), hidden, *speaker.spell("b"), hidden, speaker.end_id]
    request = GenerateRequest(
        prompt=speaker.prompt_for(said),
        config=GenerationConfig(
            sampling=SamplingParams(temperature=0),
            output=OutputOptions(top_logprobs=1, token_ids=True),
        ),
    )

    answer = await ask(speaker.server, request)

    assert answer.text == "東b"
    assert [entry.chosen.token_id for entry in answer.output.logprobs] == said
    assert answer.output.logprobs[0].chosen.token == b"<|im_start|>"
