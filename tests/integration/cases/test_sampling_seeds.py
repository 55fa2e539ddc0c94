"""A seed decides an answer, whatever else is in the batch."""

import asyncio

import pytest
from antiphon.v1.admin_pb2 import FlushPrefixCacheRequest
from antiphon.v1.inference_pb2 import GenerateRequest
from antiphon.v1.types_pb2 import SamplingParams

from support.answers import ask, ask_in_session
from support.sampling_calls import RunningCall, config_for, request_for, token_ids_of
from support.server import RunningServer

pytestmark = pytest.mark.asyncio(loop_scope="session")

# The logits of a row move in their last bits with the rows beside it. Among all tokens of a nearly
# flat distribution, a draw would now and then lie that near to the edge between two.
TOP_K = 8
SEEDS = [0, 1, 42, 2**63 - 1, 2**63, 2**64 - 1]


def seeded(seed: int, *, num_outputs: int = 1) -> GenerateRequest:
    sampling = SamplingParams(temperature=1, top_k=TOP_K, seed=seed)
    return request_for(sampling, num_outputs=num_outputs)


def unseeded() -> GenerateRequest:
    return request_for(SamplingParams(temperature=1, top_k=TOP_K))


async def together(server: RunningServer, *requests: GenerateRequest) -> list[list[int]]:
    """Submits requests in this order, so that they share their steps; returns their tokens."""
    calls = [RunningCall(server, request) for request in requests]
    return [await call.token_ids() for call in calls]


@pytest.mark.parametrize("seed", SEEDS)
async def test_seed_gives_the_same_answer_alone_and_in_any_company(
    tiny: RunningServer, seed: int
) -> None:
    alone = (await ask(tiny, seeded(seed))).output.token_ids
    others = [seeded(other) for other in range(100, 107)]

    first, *_ = await together(tiny, seeded(seed), *(unseeded() for _ in range(7)))
    *_, last = await together(tiny, *(unseeded() for _ in range(7)), seeded(seed))
    among_seeded = await together(tiny, *others[:4], seeded(seed), *others[4:])
    twins = await together(tiny, seeded(seed), seeded(seed))

    assert first == last == among_seeded[4] == alone
    assert twins == [alone, alone]


async def test_seeds_beside_each_other_and_far_apart_give_different_answers(
    tiny: RunningServer,
) -> None:
    answers = [tuple(await token_ids_of(tiny, seeded(seed))) for seed in SEEDS]

    assert len(set(answers)) == len(SEEDS)


@pytest.mark.parametrize("seed", [0, 42, 2**64 - 1])
async def test_outputs_of_a_request_differ_and_come_again(tiny: RunningServer, seed: int) -> None:
    alone = [o.token_ids for o in (await ask(tiny, seeded(seed, num_outputs=3))).outputs]
    company = asyncio.gather(*(token_ids_of(tiny, unseeded()) for _ in range(7)))
    again = [o.token_ids for o in (await ask(tiny, seeded(seed, num_outputs=3))).outputs]
    await company

    assert again == alone
    assert len({tuple(token_ids) for token_ids in alone}) == 3
    assert alone[0] == await token_ids_of(tiny, seeded(seed))


async def test_answers_without_a_seed_differ_and_tell_the_one_that_was_drawn(
    tiny: RunningServer,
) -> None:
    calls = [RunningCall(tiny, unseeded()) for _ in range(4)]
    answers = [await call.token_ids() for call in calls]

    assert len({tuple(answer) for answer in answers}) == 4
    for call, answer in zip(calls, answers, strict=True):
        assert await token_ids_of(tiny, seeded(call.seed)) == answer


async def test_zero_is_a_seed(tiny: RunningServer) -> None:
    calls = [RunningCall(tiny, seeded(0)) for _ in range(2)]
    answers = [await call.token_ids() for call in calls]

    assert answers[0] == answers[1]
    assert [call.seed for call in calls] == [0, 0]


@pytest.mark.parametrize("seed", [0, 42])
async def test_seed_gives_the_same_turn_in_any_session(tiny: RunningServer, seed: int) -> None:
    config = config_for(SamplingParams(temperature=1, top_k=TOP_K, seed=seed))
    _, alone = await ask_in_session(tiny, "Hello.", config)
    company = asyncio.gather(*(token_ids_of(tiny, unseeded()) for _ in range(7)))
    _, again = await ask_in_session(tiny, "Hello.", config)
    await company

    assert again.output.token_ids == alone.output.token_ids


async def test_it_does_not_matter_how_the_prompt_is_computed(tiny: RunningServer) -> None:
    """At once, not at all, or in parts beside long prompts."""
    request = seeded(42)
    long = [
        request_for(SamplingParams(temperature=0), prompt=[i, *range(5, 470)], num_tokens=4)
        for i in range(5, 8)
    ]
    await tiny.admin.FlushPrefixCache(FlushPrefixCacheRequest())
    cold = await token_ids_of(tiny, request)
    warm = await token_ids_of(tiny, request)
    await tiny.admin.FlushPrefixCache(FlushPrefixCacheRequest())
    *_, beside = await together(tiny, *long, request)

    assert warm == cold
    assert beside == cold


async def test_contract_itself_has_no_place_for_a_negative_seed() -> None:
    with pytest.raises(ValueError, match="range"):
        SamplingParams(seed=-1)
