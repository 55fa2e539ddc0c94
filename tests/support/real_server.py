"""A whole server over a real engine process: gRPC, front end, link, loop, sampler and core."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from antiphon_engine.api.checkpoint import inspect_checkpoint
from antiphon_engine.api.link import EngineLink
from support.scripted_engine import Script, write_script
from support.server import INFO, RunningServer, loopback_config, running_server

_SMALL = ("engine.num_threads=1", "engine.kv_cache_tokens=8192")


@asynccontextmanager
async def real_server(
    directory: Path, checkpoint: Path, *, settings: Sequence[str] = ()
) -> AsyncIterator[RunningServer]:
    """Serves a checkpoint with its tokenizer as `models/tiny` until the block ends.

    Args:
        directory: Where the session store is kept.
        checkpoint: The directory of the model.
        settings: `section.key=value` each, over those of a small server on loopback ports.
    """
    settings = (*_SMALL, *settings)
    engine = await EngineLink.start(loopback_config(directory, settings).engine, checkpoint)
    try:
        async with running_server(
            directory,
            engine=engine,
            checkpoint=checkpoint,
            info=inspect_checkpoint(checkpoint),
            settings=settings,
        ) as running:
            yield running
    finally:
        await engine.close()


@asynccontextmanager
async def scripted_server(
    directory: Path, tokenizer: Path, script: Script, *, settings: Sequence[str] = ()
) -> AsyncIterator[RunningServer]:
    """Likewise, with a model that says what the script says in the words of a tokenizer."""
    settings = (*_SMALL, *settings)
    engine = await EngineLink.start(
        loopback_config(directory, settings).engine,
        tokenizer,
        command=write_script(directory / "script.json", script),
    )
    info = replace(
        INFO, vocabulary_size=script.vocabulary_size, context_tokens=script.context_tokens
    )
    try:
        async with running_server(
            directory, engine=engine, checkpoint=tokenizer, info=info, settings=settings
        ) as running:
            yield running
    finally:
        await engine.close()
