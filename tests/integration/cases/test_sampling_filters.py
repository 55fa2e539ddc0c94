"""Top-k, top-p and min-p at their edges, and rows of all kinds in one batch."""

import asyncio
import math
import random
from itertools import product

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
    token_ids_of,
)
from support.server import RunningServer
from support.tiny_checkpoints import VOCABULARY_SIZE

pytestmark = pytest.mark.asyncio(loop_scope="session")

TOP_K = [0, 1, 2, 40, VOCABULARY_SIZE, VOCABULARY_SIZE + 1, 2**32 - 1]
TOP_P = [1e-45, 1e-9, 0.3, 0.9, 1]
MIN_P = [0, 1e-9, 0.2, 1]
KEEPS_ALL = SamplingParams(temperature=1.3, seed=21)


def filtered(top_k: int, top_p: float, min_p: float, *, seed: int = 21) -> SamplingParams:
    return SamplingParams(temperature=1.3, seed=seed, top_k=top_k, top_p=top_p, min_p=min_p)


@pytest.mark.parametrize(
    "sampling",
    [
        *(filtered(top_k, 1, 0) for top_k in TOP_K),
        *(filtered(0, top_p, 0) for top_p in TOP_P),
        *(filtered(0, 1, min_p) for min_p in MIN_P),
        *(filtered(5, 0.9, 0.05), filtered(40, 0.3, 0), filtered(2, 0.999, 0.9)),
    ],
    ids=lambda sampling: f"{sampling.top_k}-{sampling.top_p:g}-{sampling.min_p:g}",
)
async def test_every_token_is_one_that_the_filters_keep(
    tiny: RunningServer, logits: LogitReference, sampling: SamplingParams
) -> None:
    answer = await ask(tiny, request_for(sampling))
    _, turn = await ask_in_session(tiny, "Hello.", config_for(sampling))

    params = in_the_engines_words(sampling)
    assert logits.allow(params, PROMPT, answer.output.token_ids)
    assert len(turn.output.token_ids) == 24


async def test_reference_tells_filtered_from_unfiltered_tokens(
    tiny: RunningServer, logits: LogitReference
) -> None:
    """Guards the test above: what is drawn from all tokens is not what filters keep."""
    token_ids = await token_ids_of(tiny, request_for(KEEPS_ALL))

    assert logits.allow(in_the_engines_words(KEEPS_ALL), PROMPT, token_ids)
    for sampling in (filtered(5, 1, 0), filtered(0, 0.3, 0), filtered(0, 1, 0.5)):
        assert not logits.allow(in_the_engines_words(sampling), PROMPT, token_ids)


@pytest.mark.parametrize(
    "sampling",
    [filtered(1, 1, 0), filtered(0, 1e-45, 0), filtered(0, 1e-9, 0), filtered(0, 1, 1)],
    ids=["top_k_of_one", "smallest_top_p", "tiny_top_p", "min_p_of_one"],
)
async def test_filters_that_leave_one_token_give_the_likeliest(
    tiny: RunningServer, sampling: SamplingParams
) -> None:
    greedy = await token_ids_of(tiny, request_for(SamplingParams(temperature=0)))

    assert await token_ids_of(tiny, request_for(sampling)) == greedy


@pytest.mark.parametrize(
    "sampling",
    [filtered(0, 1, 0), *(filtered(top_k, 1, 0) for top_k in TOP_K if top_k >= VOCABULARY_SIZE)],
    ids=lambda sampling: str(sampling.top_k),
)
async def test_filters_that_leave_all_tokens_change_nothing(
    tiny: RunningServer, sampling: SamplingParams
) -> None:
    unfiltered = await token_ids_of(tiny, request_for(KEEPS_ALL))

    assert await token_ids_of(tiny, request_for(sampling)) == unfiltered


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("top_p", value) for value in (0, -0.0, -0.1, 1.0001, 2, math.nan, math.inf)),
        *(("min_p", value) for value in (-0.1, 1.0001, 1.5, math.nan, -math.inf)),
    ],
)
async def test_filter_out_of_range_is_refused(
    tiny: RunningServer, field: str, value: float
) -> None:
    sampling = SamplingParams(temperature=1)
    setattr(sampling, field, value)

    await check_refused(tiny, request_for(sampling), f"sampling.{field}")


async def test_contract_itself_has_no_place_for_a_negative_top_k() -> None:
    with pytest.raises(ValueError, match="range"):
        SamplingParams(top_k=-1)


async def test_rows_of_all_kinds_in_one_batch_are_each_as_if_alone(tiny: RunningServer) -> None:
    pick = random.Random(4)
    settings = pick.sample([*product(TOP_K, TOP_P, MIN_P)], 20)
    samplings = [filtered(*values, seed=i) for i, values in enumerate(settings)]
    samplings += [SamplingParams(temperature=0), SamplingParams(temperature=0.7, seed=0)] * 3
    pick.shuffle(samplings)
    requests = [
        request_for(sampling, prompt=[*PROMPT[: 10 + i], 500 + i], num_tokens=16 + i)
        for i, sampling in enumerate(samplings)
    ]

    alone = [await token_ids_of(tiny, request) for request in requests]
    together = await asyncio.gather(*(token_ids_of(tiny, request) for request in requests))

    assert together == alone
