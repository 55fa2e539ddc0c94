"""Many streams at once over a real model: each whole, each as if it were alone."""

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from antiphon.v1.admin_pb2 import FlushPrefixCacheRequest, GetEngineStatsRequest
from antiphon.v1.inference_pb2 import GenerateRequest, GenerateResponse, StreamGenerateResponse
from antiphon.v1.types_pb2 import (
    GenerationConfig,
    OutputOptions,
    Prompt,
    SamplingParams,
    StopConditions,
    TokenIds,
)

from support.answers import LIMIT_S, fold, without_circumstances
from support.canary import Canary
from support.real_server import real_server
from support.server import RunningServer
from support.tiny_checkpoints import VOCABULARY_SIZE

pytestmark = pytest.mark.asyncio(loop_scope="module")

NUM_STREAMS = 64


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def canary(
    tmp_path_factory: pytest.TempPathFactory, tiny_checkpoint: Path
) -> AsyncIterator[Canary]:
    """Has room for all rows, and memory for a part of them: some wait for others to end."""
    settings = ["engine.max_rows=64", "engine.kv_cache_tokens=4096", "engine.max_step_tokens=256"]
    directory = tmp_path_factory.mktemp("concurrent")
    async with real_server(directory, tiny_checkpoint, settings=settings) as server:
        yield await Canary.of(server)


@pytest_asyncio.fixture(loop_scope="module")
async def server(canary: Canary) -> AsyncIterator[RunningServer]:
    yield canary.server
    await canary.check()


def make_requests(seed: int) -> list[GenerateRequest]:
    """Prompts of many lengths, some with one beginning; likeliest tokens, and drawn ones."""
    source = random.Random(seed)
    shared = [source.randrange(3, VOCABULARY_SIZE) for _ in range(70)]
    requests = []
    for index in range(NUM_STREAMS):
        own = [source.randrange(3, VOCABULARY_SIZE) for _ in range(source.randint(1, 90))]
        sampling = SamplingParams(temperature=0)
        if index % 4 == 3:
            sampling = SamplingParams(temperature=0.9, top_p=0.95, seed=index)
        config = GenerationConfig(
            sampling=sampling,
            stop=StopConditions(max_output_tokens=source.randint(8, 40)),
            output=OutputOptions(token_ids=True, special_tokens=True),
        )
        token_ids = shared + own if index % 2 else own
        requests.append(
            GenerateRequest(prompt=Prompt(token_ids=TokenIds(ids=token_ids)), config=config)
        )
    return requests


async def stream(server: RunningServer, request: GenerateRequest) -> list[StreamGenerateResponse]:
    call = server.inference.StreamGenerate(request, timeout=LIMIT_S)
    return [response async for response in call]


async def num_steps(server: RunningServer) -> int:
    return int((await server.admin.GetEngineStats(GetEngineStatsRequest())).step)


async def test_many_streams_at_once_are_each_whole_and_as_if_alone(server: RunningServer) -> None:
    requests = make_requests(5)
    before = await num_steps(server)
    alone: list[GenerateResponse] = []
    for request in requests:
        await server.admin.FlushPrefixCache(FlushPrefixCacheRequest())
        alone.append(await server.inference.Generate(request, timeout=LIMIT_S))
    between = await num_steps(server)

    together = await asyncio.gather(*(stream(server, request) for request in requests))

    assert (await num_steps(server) - between) < (between - before) / 2  # They ran side by side.
    for responses, expected in zip(together, alone, strict=True):
        kinds = [response.WhichOneof("event") for response in responses]
        assert kinds.count("completed") == 1
        assert kinds.count("output_finished") == 1
        folded = fold(responses, 1)
        assert without_circumstances(folded) == without_circumstances(expected)
