"""The torch-free engine process: what the torture's judgements rest on."""

from array import array
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from antiphon_engine.api.config import EngineConfig
from antiphon_engine.api.link import EngineLink
from antiphon_engine.api.messages import (
    FinishReason,
    GenerationRequest,
    SamplingParams,
    StopParams,
)
from support.fake_engine_process import Behaviour, fake_engine_command


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[EngineLink]:
    command = fake_engine_command(tmp_path / "behaviour.json", Behaviour())
    engine = await EngineLink.start(EngineConfig(), tmp_path, command=command)
    yield engine
    await engine.close()


def asked(
    prompt: Sequence[int], *, seed: int = 5, max_tokens: int = 20, resumed: int = 0
) -> GenerationRequest:
    return GenerationRequest(
        prompt=array("i", prompt).tobytes(),
        sampling=SamplingParams(seed=seed),
        stop=StopParams(max_output_tokens=max_tokens),
        num_resumed_tokens=resumed,
    )


async def answer(engine: EngineLink, request: GenerationRequest) -> list[int]:
    stream, said = engine.submit(request), []
    while True:
        if output := (await stream.next()).outputs.get(0):
            said += output.token_ids
            if output.ended is not None:
                assert output.ended is FinishReason.MAX_OUTPUT_TOKENS
                return said


async def test_an_output_that_is_taken_up_again_goes_on_as_if_it_had_not_stopped(engine):
    prompt = list(range(3, 43))
    whole = await answer(engine, asked(prompt))

    rests = [await answer(engine, asked(prompt + whole[:k], resumed=k)) for k in range(1, 20)]

    assert [whole[:k] + rest for k, rest in enumerate(rests, start=1)] == [whole] * 19


async def test_whatever_stands_before_decides_what_follows(engine):
    prompt = list(range(3, 43))
    whole = await answer(engine, asked(prompt))
    cut = prompt + whole[:8]
    doubled = prompt + whole[:8] + whole[7:8]

    others = [
        await answer(engine, asked([4, *prompt[1:]])),
        await answer(engine, asked(prompt, seed=6)),
        whole[:7] + await answer(engine, asked(prompt + whole[1:8], resumed=7)),
        whole[:8] + await answer(engine, asked(cut, resumed=7)),
        whole[:8] + await answer(engine, asked(doubled, resumed=9)),
    ]

    assert whole not in others


async def test_a_request_that_is_held_goes_on_with_the_same_tokens(engine):
    whole = await answer(engine, asked(range(40), max_tokens=200))
    stream = engine.submit(asked(range(40), max_tokens=200))
    said: list[int] = []
    while not said:
        if output := (await stream.next()).outputs.get(0):
            said += output.token_ids

    stream.hold()
    while not (await engine.stats()).num_held:
        pass
    assert (await engine.stats()).num_blocks_used == 0
    stream.release()
    while len(said) < 200:
        said += (await stream.next()).outputs[0].token_ids

    assert said == whole
