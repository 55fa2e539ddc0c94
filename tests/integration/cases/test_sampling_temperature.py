"""Temperatures from zero to the highest, also over logits of any size."""

import math

import pytest
from antiphon.v1.types_pb2 import SamplingParams

from support.answers import ask, ask_in_session
from support.logit_reference import LogitReference
from support.sampling_calls import (
    PROMPT,
    check_refused,
    config_for,
    in_the_engines_words,
    request_for,
)
from support.server import RunningServer

pytestmark = pytest.mark.asyncio(loop_scope="session")

HIGHEST = 1e9
GREEDY = [
    SamplingParams(temperature=0),
    SamplingParams(temperature=-0.0),
    SamplingParams(temperature=1e-45, seed=5),
    SamplingParams(temperature=1e-8, seed=5),
    SamplingParams(temperature=1e-5, seed=5),
    SamplingParams(temperature=1, top_k=1, seed=5),
    SamplingParams(temperature=HIGHEST, top_k=1, seed=5),
    SamplingParams(temperature=1e-8, top_k=40, top_p=0.9, min_p=0.1, seed=5),
]
BIASES = {
    "no_bias": {},
    "lifted": {400: 100.0, 401: 100.0, 402: 99.5},
    "sunk": dict.fromkeys(range(0, 1024, 2), -100.0),
    "apart": dict.fromkeys(range(512), 100.0) | dict.fromkeys(range(512, 1024), -100.0),
}


def biased(sampling: SamplingParams, name: str) -> SamplingParams:
    result = SamplingParams(logit_bias=BIASES[name])
    result.MergeFrom(sampling)
    return result


@pytest.mark.parametrize("bias", BIASES)
async def test_whatever_leaves_one_token_gives_the_likeliest(
    tiny: RunningServer, logits: LogitReference, bias: str
) -> None:
    outputs = set()
    for sampling in GREEDY:
        answer = await ask(tiny, request_for(biased(sampling, bias)))
        outputs.add(tuple(answer.output.token_ids))

    assert len(outputs) == 1
    margins = logits.margins(
        in_the_engines_words(biased(GREEDY[0], bias)), PROMPT, list(outputs.pop())
    )
    assert max(margins) < 1e-3


async def test_whatever_leaves_one_token_gives_the_likeliest_in_turns(tiny: RunningServer) -> None:
    outputs = set()
    for sampling in GREEDY:
        _, turn = await ask_in_session(tiny, "Hello.", config_for(sampling))
        outputs.add(tuple(turn.output.token_ids))

    assert len(outputs) == 1


@pytest.mark.parametrize("bias", BIASES)
@pytest.mark.parametrize("temperature", [1.1e-5, 1e-3])
async def test_low_temperature_draws_what_is_as_good_as_the_likeliest(
    tiny: RunningServer, logits: LogitReference, temperature: float, bias: str
) -> None:
    sampling = biased(SamplingParams(temperature=temperature, seed=5), bias)

    answer = await ask(tiny, request_for(sampling))

    margins = logits.margins(in_the_engines_words(sampling), PROMPT, answer.output.token_ids)
    assert max(margins) < 1e-3 + 40 * temperature


@pytest.mark.parametrize("bias", ["no_bias", "sunk"])
@pytest.mark.parametrize("temperature", [100, HIGHEST])
async def test_high_temperatures_draw_almost_evenly(
    tiny: RunningServer, temperature: float, bias: str
) -> None:
    sampling = biased(SamplingParams(temperature=temperature, seed=5), bias)

    answer = await ask(tiny, request_for(sampling, num_tokens=60))

    token_ids = answer.output.token_ids
    assert len(set(token_ids)) > 50
    odd = sum(token_id % 2 for token_id in token_ids)
    # What is sunk by 100 is as likely as the others where 100 is next to nothing.
    assert odd > 30 if bias == "sunk" and temperature < HIGHEST else 15 < odd < 45


@pytest.mark.parametrize(
    "temperature", [-0.1, -1e-30, math.nan, math.inf, -math.inf, 1.001e9, 3e38]
)
async def test_temperature_out_of_range_is_refused(tiny: RunningServer, temperature: float) -> None:
    request = request_for(SamplingParams(temperature=temperature))

    await check_refused(tiny, request, "sampling.temperature")


@pytest.mark.parametrize("bias", [math.nan, math.inf, -math.inf, 100.01, -3e38])
async def test_bias_out_of_range_is_refused(tiny: RunningServer, bias: float) -> None:
    request = request_for(SamplingParams(temperature=0, logit_bias={7: bias}))

    await check_refused(tiny, request, "sampling.logit_bias[7]")
