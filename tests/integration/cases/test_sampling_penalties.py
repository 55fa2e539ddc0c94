"""Penalties count what the contract says they count, however much of the prompt was cached."""

import math
from collections.abc import Sequence

import pytest
from antiphon.v1.admin_pb2 import FlushPrefixCacheRequest
from antiphon.v1.inference_pb2 import GenerateRequest
from antiphon.v1.session_pb2 import CreateSessionRequest
from antiphon.v1.types_pb2 import GenerationConfig, SamplingParams

from support.answers import LIMIT_S, Answer, ask, fold_turn, run_turn
from support.logit_reference import LogitReference
from support.sampling_calls import (
    check_refused,
    config_for,
    in_the_engines_words,
    request_for,
    token_ids_of,
)
from support.server import RunningServer

pytestmark = pytest.mark.asyncio(loop_scope="session")

PROMPT = [*range(300, 355), *([777] * 10), *range(400, 410)]
"""A token occurs ten times, in the part that a warm cache has."""
LIFTED = {777: 6.0, 305: 4.0, 612: 5.0}
"""Makes tokens likely that are in the prompt often, once and not at all."""


def penalised(**penalties: float) -> SamplingParams:
    return SamplingParams(temperature=0, logit_bias=LIFTED, **penalties)


SETTINGS = [
    *(penalised(repetition_penalty=value) for value in (0.01, 0.5, 1, 1.5, 2.5, 10)),
    *(penalised(presence_penalty=value) for value in (-2, 2)),
    *(penalised(frequency_penalty=value) for value in (-2, 0.5, 2)),
    penalised(repetition_penalty=1.3, presence_penalty=1, frequency_penalty=-0.5),
]
EACH = pytest.mark.parametrize(
    "sampling",
    SETTINGS,
    ids=lambda s: f"{s.repetition_penalty:g}-{s.presence_penalty:g}-{s.frequency_penalty:g}",
)


def with_logprobs(config: GenerationConfig) -> GenerationConfig:
    config.output.top_logprobs = 5
    return config


def asking(sampling: SamplingParams) -> GenerateRequest:
    request = request_for(sampling, prompt=PROMPT)
    with_logprobs(request.config)
    return request


def check_rule(
    logits: LogitReference,
    sampling: SamplingParams,
    *,
    prompt: Sequence[int],
    output: Sequence[int],
) -> None:
    margins = logits.margins(in_the_engines_words(sampling), prompt, output)
    assert len(margins) == 24
    assert max(margins) < 1e-3


@EACH
async def test_tokens_are_those_of_the_rule_cold_and_warm(
    tiny: RunningServer, logits: LogitReference, sampling: SamplingParams
) -> None:
    request = asking(sampling)
    await tiny.admin.FlushPrefixCache(FlushPrefixCacheRequest())
    cold = await tiny.inference.Generate(request, timeout=LIMIT_S)
    warm: Answer = await ask(tiny, request)

    token_ids = list(warm.output.token_ids)
    assert cold.usage.cached_prompt_tokens == 0
    assert warm.usage.cached_prompt_tokens == len(PROMPT) - 1
    assert list(cold.outputs[0].token_ids) == token_ids
    check_rule(logits, sampling, prompt=PROMPT, output=token_ids)
    # What is reported is the distribution before all penalties.
    raw = logits.logprobs_behind(PROMPT, token_ids)
    for output in (cold.outputs[0], warm.output):
        for entry, expected in zip(output.logprobs, raw, strict=False):
            for told in (entry.chosen, *entry.top):
                assert told.logprob == pytest.approx(expected[told.token_id], abs=1e-3)


@EACH
async def test_tokens_of_turns_are_those_of_the_rule(
    tiny: RunningServer, logits: LogitReference, sampling: SamplingParams
) -> None:
    """To the second turn, all of the first is prompt."""
    session = await tiny.sessions.CreateSession(CreateSessionRequest(), timeout=LIMIT_S)
    outputs, prompts = [], []
    for text in ("one two three four", "four five six"):
        events = await run_turn(tiny, session.name, text, config_for(sampling))
        outputs.append(list(fold_turn(events).token_ids))
        prompts.append([i for event in events for i in event.prompt_part.token_ids])

    for output, prompt in zip(outputs, prompts, strict=True):
        check_rule(logits, sampling, prompt=prompt, output=output)
    assert prompts[1][: len(prompts[0]) + 24] == prompts[0] + outputs[0]
    assert events[-1].completed.usage.cached_prompt_tokens > 0


async def test_penalties_change_what_is_said(tiny: RunningServer) -> None:
    """Guards the tests above: without the rule the answers would be others."""
    answers = [tuple(await token_ids_of(tiny, asking(sampling))) for sampling in SETTINGS]
    plain = tuple(await token_ids_of(tiny, asking(penalised())))

    assert [answer == plain for answer in answers] == [s.repetition_penalty == 1 for s in SETTINGS]


async def test_outputs_of_a_request_count_each_for_itself(
    tiny: RunningServer, logits: LogitReference
) -> None:
    sampling = penalised(frequency_penalty=2, repetition_penalty=1.5)
    sampling.MergeFrom(SamplingParams(temperature=1, top_k=2, seed=3))

    answer = await ask(tiny, request_for(sampling, prompt=PROMPT, num_outputs=3))

    outputs = [list(output.token_ids) for output in answer.outputs]
    assert len({tuple(output) for output in outputs}) == 3
    for output in outputs:
        assert logits.allow(in_the_engines_words(sampling), PROMPT, output)
    sampling.frequency_penalty = 0
    assert not all(logits.allow(in_the_engines_words(sampling), PROMPT, o) for o in outputs)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("repetition_penalty", value) for value in (0, -1, 10.01, math.nan, math.inf)),
        *(("presence_penalty", value) for value in (-2.01, 3, math.nan, -math.inf)),
        *(("frequency_penalty", value) for value in (-2.01, 3, math.nan, math.inf)),
    ],
)
async def test_penalty_out_of_range_is_refused(
    tiny: RunningServer, field: str, value: float
) -> None:
    await check_refused(tiny, request_for(penalised(**{field: value})), f"sampling.{field}")
