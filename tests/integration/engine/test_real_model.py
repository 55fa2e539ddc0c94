"""The engine process with a real, tiny model: sampling does not depend on what runs beside it."""

import random
from array import array
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from antiphon_engine.api.config import EngineConfig
from antiphon_engine.api.link import EngineLink
from antiphon_engine.api.messages import GenerationRequest, SamplingParams, StopParams
from support.engine_links import at_rest, read_all
from support.tiny_checkpoints import make_checkpoint

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def link(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EngineLink]:
    checkpoint = make_checkpoint(tmp_path_factory.mktemp("model"))
    config = EngineConfig(
        dtype="float32", kv_cache_tokens=4096, block_tokens=8, max_rows=8, max_step_tokens=64
    )
    link = await EngineLink.start(config, checkpoint)
    yield link
    await link.close()


def request(prompt: list[int], sampling: SamplingParams, num_outputs: int = 1) -> GenerationRequest:
    return GenerationRequest(
        prompt=array("i", prompt).tobytes(),
        sampling=sampling,
        stop=StopParams(max_output_tokens=12),
        num_outputs=num_outputs,
    )


@pytest.mark.parametrize("seed", [0, 42, 2**63, 2**64 - 1])
async def test_seed_gives_the_same_tokens_alone_and_in_company(link: EngineLink, seed: int) -> None:
    rng = random.Random(1)
    prompt = [rng.randrange(3, 500) for _ in range(21)]
    seeded = request(prompt, SamplingParams(seed=seed, top_k=40, temperature=1.3), num_outputs=3)
    await link.flush_prefix_cache()
    alone = await read_all(link.submit(seeded), 3)

    mates = [
        link.submit(request(prompt[:k], SamplingParams(seed=k, temperature=rng.random() * 2)))
        for k in range(3, 10)
    ]
    twins = [link.submit(seeded), link.submit(seeded)]

    assert [await read_all(twin, 3) for twin in twins] == [alone, alone]
    assert len({tuple(tokens) for tokens in alone.values()}) == 3
    for mate in mates:
        await read_all(mate)
    assert (await at_rest(link)).num_blocks_used == 0


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(seed=5, temperature=0.0, repetition_penalty=2.5),
        SamplingParams(seed=5, temperature=0.0, presence_penalty=2.0, frequency_penalty=-2.0),
        SamplingParams(seed=5, temperature=0.9, repetition_penalty=0.5, frequency_penalty=2.0),
    ],
    ids=str,
)
async def test_penalties_do_not_depend_on_what_was_cached(
    link: EngineLink, sampling: SamplingParams
) -> None:
    prompt = [7] * 10 + list(range(20, 60))
    await link.flush_prefix_cache()

    cold = await read_all(link.submit(request(prompt, sampling)))
    stream = link.submit(request(prompt, sampling))
    warm = await read_all(stream)

    assert warm == cold
    assert (await link.stats()).num_reused_tokens_total >= 48
