"""A prompt that was given up half-way leaves nothing for reuse but what was really computed."""

import asyncio
import random
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from antiphon.v1.admin_pb2 import EngineStats, FlushPrefixCacheRequest, GetEngineStatsRequest
from antiphon.v1.inference_pb2 import GenerateRequest, GenerateResponse
from antiphon.v1.types_pb2 import (
    GenerationConfig,
    OutputOptions,
    Prompt,
    SamplingParams,
    StopConditions,
    TokenIds,
)

from support.answers import LIMIT_S
from support.canary import Canary, at_rest
from support.real_server import real_server
from support.server import RunningServer
from support.tiny_checkpoints import TinyModel, make_checkpoint, prompts
from support.tiny_tokenizers import save_byte_level_tokenizer

pytestmark = pytest.mark.asyncio(loop_scope="module")

PROMPT_TOKENS = 1500
BLOCK_TOKENS = 16
KV_CACHE_TOKENS = 1536
"""As much as one request takes: every prompt is written over the one before it."""
NUM_REPEATS = 20


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def canary(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Canary]:
    directory = tmp_path_factory.mktemp("unwritten")
    checkpoint = make_checkpoint(directory / "checkpoint", TinyModel(context_tokens=2048))
    save_byte_level_tokenizer(checkpoint)
    settings = [
        f"engine.block_tokens={BLOCK_TOKENS}",
        f"engine.kv_cache_tokens={KV_CACHE_TOKENS}",
        "engine.max_step_tokens=48",
    ]
    async with real_server(directory, checkpoint, settings=settings) as server:
        yield await Canary.of(server)


@pytest_asyncio.fixture(loop_scope="module")
async def server(canary: Canary) -> AsyncIterator[RunningServer]:
    yield canary.server
    await canary.check()


def make_request(token_ids: list[int]) -> GenerateRequest:
    return GenerateRequest(
        prompt=Prompt(token_ids=TokenIds(ids=token_ids)),
        config=GenerationConfig(
            sampling=SamplingParams(temperature=0),
            stop=StopConditions(max_output_tokens=16, ignore_eos=True),
            output=OutputOptions(token_ids=True),
        ),
    )


async def stats_of(server: RunningServer) -> EngineStats:
    return await server.admin.GetEngineStats(GetEngineStatsRequest(), timeout=LIMIT_S)


async def wait_for_prefill(server: RunningServer, num_tokens: int) -> None:
    """Waits until so many prompt tokens have been computed in all."""
    async with asyncio.timeout(LIMIT_S):
        while (await stats_of(server)).num_prefilled_tokens_total < num_tokens:  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def give_up_and_ask_again(
    server: RunningServer, request: GenerateRequest, source: random.Random
) -> tuple[GenerateResponse, int]:
    """Cancels a request somewhere in its prompt and at once sends it again.

    Returns:
        The answer, and how many prompt tokens both computed together.
    """
    await at_rest(server)
    await server.admin.FlushPrefixCache(FlushPrefixCacheRequest(), timeout=LIMIT_S)
    before = (await stats_of(server)).num_prefilled_tokens_total
    given_up = server.inference.StreamGenerate(request, timeout=LIMIT_S)
    if source.random() < 0.5:
        await asyncio.sleep(source.uniform(0, 0.05))
    else:
        await wait_for_prefill(server, before + source.randint(1, PROMPT_TOKENS * 2 // 3))
    given_up.cancel()
    answer = await server.inference.Generate(request, timeout=LIMIT_S)
    after = await at_rest(server)
    return answer, after.num_prefilled_tokens_total - before


async def test_prompt_that_was_given_up_is_answered_as_if_for_the_first_time(
    server: RunningServer, scale: int
) -> None:
    source = random.Random(1)
    requests = [make_request(ids) for ids in prompts(2, least=PROMPT_TOKENS, most=PROMPT_TOKENS)]
    cold = [await server.inference.Generate(request, timeout=LIMIT_S) for request in requests]
    hits = set()
    for i in range(NUM_REPEATS * scale):
        answer, num_computed = await give_up_and_ask_again(server, requests[i % 2], source)

        cached = answer.usage.cached_prompt_tokens
        assert answer.outputs == cold[i % 2].outputs
        # Whole blocks, or all but the last token where the prompt was done before it was given up.
        assert cached % BLOCK_TOKENS == 0 or cached == PROMPT_TOKENS - 1
        # The second computed all that it didn't reuse: what it reused, the first had computed.
        assert cached <= num_computed - (PROMPT_TOKENS - cached)
        hits.add(cached)
    assert any(0 < cached < PROMPT_TOKENS - BLOCK_TOKENS for cached in hits)
