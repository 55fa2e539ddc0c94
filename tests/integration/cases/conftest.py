"""Servers over real engine processes that the tests of a run share, each watched by a canary."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio
import tokenizers
import torch

from support.canary import Canary
from support.forced_texts import VOCABULARY_SIZE, Speaker, silent_ids
from support.logit_reference import LogitReference
from support.real_server import real_server, scripted_engine, scripted_server
from support.scripted_engine import Script
from support.server import RunningServer
from support.tiny_checkpoints import make_checkpoint
from support.tiny_tokenizers import (
    VOCABULARY_SIZE as TOKENIZER_SIZE,
)
from support.tiny_tokenizers import (
    save_byte_fallback_tokenizer,
    save_byte_level_tokenizer,
)


@dataclass(frozen=True, slots=True)
class Speakers:
    """Speakers by the kind of their tokenizer, and their canaries."""

    by_kind: dict[str, Speaker]
    canaries: dict[str, Canary]


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of 1024 tokens under a tokenizer of 1000, with two ids that end an answer."""
    directory = make_checkpoint(tmp_path_factory.mktemp("tiny") / "checkpoint")
    return save_byte_level_tokenizer(directory)


@pytest.fixture(scope="session")
def logits(tiny_checkpoint: Path) -> LogitReference:
    """What the tiny model computes, by another library."""
    torch.set_num_threads(1)
    return LogitReference(tiny_checkpoint)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def tiny_canary(
    tmp_path_factory: pytest.TempPathFactory, tiny_checkpoint: Path
) -> AsyncIterator[Canary]:
    async with real_server(tmp_path_factory.mktemp("served"), tiny_checkpoint) as server:
        yield await Canary.of(server)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def checked_tiny(tiny_canary: Canary) -> AsyncIterator[Canary]:
    """The same, which has to answer as before once a file's tests are through."""
    yield tiny_canary
    await tiny_canary.check()


@pytest_asyncio.fixture(loop_scope="session")
async def tiny(checked_tiny: Canary) -> AsyncIterator[RunningServer]:
    """A server of a tiny random model; each test leaves it as it was."""
    yield checked_tiny.server
    await checked_tiny.check_rest()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def speakers(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Speakers]:
    directory = tmp_path_factory.mktemp("spoken")
    folder = directory / "texts"
    folder.mkdir()
    script = Script(texts_folder=str(folder), vocabulary_size=VOCABULARY_SIZE, step_delay_s=0.001)
    kinds = {
        "byte_level": save_byte_level_tokenizer,
        "byte_fallback": save_byte_fallback_tokenizer,
    }
    ids = silent_ids(TOKENIZER_SIZE)
    found = Speakers({}, {})
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(scripted_engine(directory, script))
        for kind, save in kinds.items():
            tokenizer = save(directory / kind)
            server = await stack.enter_async_context(
                scripted_server(directory / kind, tokenizer, engine)
            )
            found.by_kind[kind] = Speaker(
                name=kind,
                server=server,
                folder=folder,
                silent_ids=ids,
                reference=tokenizers.Tokenizer.from_file(str(tokenizer / "tokenizer.json")),
            )
            found.canaries[kind] = await Canary.of(server)
        yield found


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def checked_speakers(speakers: Speakers) -> AsyncIterator[Speakers]:
    """The same, which have to answer as before once a file's tests are through."""
    yield speakers
    for canary in speakers.canaries.values():
        await canary.check()


@pytest_asyncio.fixture(loop_scope="session", params=["byte_level", "byte_fallback"])
async def speaker(
    checked_speakers: Speakers, request: pytest.FixtureRequest
) -> AsyncIterator[Speaker]:
    """A server that says what it is told to; each test leaves it as it was."""
    yield checked_speakers.by_kind[request.param]
    await checked_speakers.canaries[request.param].check_rest()


@pytest_asyncio.fixture(loop_scope="session")
async def byte_level(checked_speakers: Speakers) -> AsyncIterator[Speaker]:
    """The speaker with a byte-level tokenizer alone."""
    yield checked_speakers.by_kind["byte_level"]
    await checked_speakers.canaries["byte_level"].check_rest()
