"""Requests that fit the model's context and not the memory hold up nobody."""

import asyncio
from collections.abc import AsyncIterator

import grpc
import pytest
import pytest_asyncio
from antiphon.v1.admin_pb2 import GetEngineStatsRequest
from antiphon.v1.inference_pb2 import GenerateRequest
from antiphon.v1.model_pb2 import GetModelRequest
from antiphon.v1.types_pb2 import (
    FinishReason,
    GenerationConfig,
    OutputOptions,
    Prompt,
    SamplingParams,
    StopConditions,
    TokenIds,
)

from support.answers import LIMIT_S, ask
from support.canary import Canary
from support.real_server import real_server, scripted_engine, scripted_server
from support.refusals import refusal_of_both
from support.scripted_engine import Script
from support.server import RunningServer
from support.tiny_checkpoints import TinyModel, make_checkpoint, prompts
from support.tiny_tokenizers import save_byte_level_tokenizer

pytestmark = pytest.mark.asyncio(loop_scope="module")

CONTEXT_TOKENS = 2048
BLOCK_TOKENS = 16
NUM_BLOCKS = 32
KV_CACHE_TOKENS = NUM_BLOCKS * BLOCK_TOKENS
POOL = [f"engine.block_tokens={BLOCK_TOKENS}", f"engine.kv_cache_tokens={KV_CACHE_TOKENS}"]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def canary(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Canary]:
    directory = tmp_path_factory.mktemp("pool")
    checkpoint = make_checkpoint(directory / "model", TinyModel(context_tokens=CONTEXT_TOKENS))
    save_byte_level_tokenizer(checkpoint)
    async with real_server(directory, checkpoint, settings=POOL) as server:
        yield await Canary.of(server)


@pytest_asyncio.fixture(loop_scope="module")
async def server(canary: Canary) -> AsyncIterator[RunningServer]:
    """A server whose memory holds a quarter of the checkpoint's context."""
    yield canary.server
    await canary.check()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def unlimited_canary(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Canary]:
    directory = tmp_path_factory.mktemp("unlimited")
    tokenizer = save_byte_level_tokenizer(directory / "tokenizer")
    script = Script(texts={"*": [20, 21, 22]}, context_tokens=CONTEXT_TOKENS, step_delay_s=0.002)
    async with (
        scripted_engine(directory, script, settings=POOL) as engine,
        scripted_server(directory, tokenizer, engine) as server,
    ):
        yield await Canary.of(server)


@pytest_asyncio.fixture(loop_scope="module")
async def unlimited(unlimited_canary: Canary) -> AsyncIterator[RunningServer]:
    """A server whose context was not lowered to what its memory holds."""
    yield unlimited_canary.server
    await unlimited_canary.check()


def make_request(prompt_tokens: int, max_output_tokens: int | None, seed: int) -> GenerateRequest:
    (token_ids,) = prompts(1, least=prompt_tokens, most=prompt_tokens, seed=seed)
    return GenerateRequest(
        prompt=Prompt(token_ids=TokenIds(ids=token_ids)),
        config=GenerationConfig(
            sampling=SamplingParams(temperature=0),
            stop=StopConditions(max_output_tokens=max_output_tokens, ignore_eos=True),
            output=OutputOptions(token_ids=True),
        ),
    )


async def ask_short_ones(server: RunningServer) -> None:
    requests = [make_request(20, 8, seed) for seed in range(10)]
    calls = [server.inference.Generate(request, timeout=LIMIT_S) for request in requests]
    for answer in await asyncio.gather(*calls):
        assert len(answer.outputs[0].token_ids) == 8


async def test_context_is_lowered_to_what_the_memory_holds_and_says_so(
    server: RunningServer,
) -> None:
    model = await server.models.GetModel(GetModelRequest(name="models/tiny"))
    short = asyncio.gather(*(ask_short_ones(server) for _ in range(2)))

    refused = [
        await refusal_of_both(server, make_request(*figures, seed=1))
        for figures in ((700, 10), (700, None), (400, 200))
    ]

    await short
    assert model.limits.context_tokens == model.limits.kv_cache_tokens == KV_CACHE_TOKENS
    for refusal, prompt, asked in zip(refused, (700, 700, 400), (10, 1, 200), strict=True):
        assert refusal.code is grpc.StatusCode.INVALID_ARGUMENT
        assert refusal.reason == "CONTEXT_LENGTH_EXCEEDED"
        figures = {"limit": KV_CACHE_TOKENS, "prompt": prompt, "asked": asked}
        assert refusal.metadata == {key: str(value) for key, value in figures.items()}


async def test_request_as_large_as_the_memory_is_answered_to_the_end(
    server: RunningServer,
) -> None:
    answer = await ask(server, make_request(400, None, seed=2))

    assert answer.output.finish_reason == FinishReason.FINISH_REASON_CONTEXT_FULL
    assert len(answer.output.token_ids) == KV_CACHE_TOKENS - 400


async def test_requests_that_together_exceed_the_memory_take_turns(server: RunningServer) -> None:
    requests = [make_request(60 + 20 * i, 80, seed=i) for i in range(8)]
    alone = [await server.inference.Generate(r, timeout=LIMIT_S) for r in requests]

    together = await asyncio.gather(
        *(server.inference.Generate(request, timeout=LIMIT_S) for request in requests)
    )

    assert [list(a.outputs) for a in together] == [list(a.outputs) for a in alone]


@pytest.mark.parametrize(("prompt_tokens", "asked"), [(700, 10), (400, 200), (400, None)])
async def test_request_that_can_never_fit_is_refused_at_once_while_others_run(
    unlimited: RunningServer, prompt_tokens: int, asked: int | None
) -> None:
    long = unlimited.inference.StreamGenerate(make_request(5, 480, seed=3), timeout=LIMIT_S)
    await long.read()
    waiting = asyncio.gather(*(ask_short_ones(unlimited) for _ in range(2)))

    refusal = await refusal_of_both(unlimited, make_request(prompt_tokens, asked, seed=4))

    assert not long.done()
    assert refusal.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert refusal.reason == "NEVER_FITS"
    total = prompt_tokens + (asked or CONTEXT_TOKENS - prompt_tokens)
    needed = int(refusal.metadata["needed_blocks"])
    assert total - 1 <= needed * BLOCK_TOKENS < total + BLOCK_TOKENS
    assert refusal.metadata["available_blocks"] == str(NUM_BLOCKS)
    await waiting
    stats = await unlimited.admin.GetEngineStats(GetEngineStatsRequest(), timeout=LIMIT_S)
    assert stats.num_waiting == 0
    long.cancel()
