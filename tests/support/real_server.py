"""A whole server over a real engine process: gRPC, front end, link, loop, sampler and core."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from antiphon_engine.api.checkpoint import inspect_checkpoint
from antiphon_engine.api.link import EngineLink
from support.engine_zygote import fork_script, forked
from support.scripted_engine import Script
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
    command = forked("antiphon_engine")
    async with _engine(directory, checkpoint, (*_SMALL, *settings), command=command) as engine:
        info = inspect_checkpoint(checkpoint)
        async with running_server(
            directory,
            engine=engine,
            checkpoint=checkpoint,
            info=info,
            settings=(*_SMALL, *settings),
        ) as running:
            yield running


@asynccontextmanager
async def scripted_engine(
    directory: Path,
    script: Script,
    *,
    settings: Sequence[str] = (),
    write: Callable[[Path, Script], list[str]] = fork_script,
) -> AsyncIterator[EngineLink]:
    """Runs an engine whose model says what the script says. Several servers may share it.

    Args:
        directory: Where the script is written.
        script: What the engine does.
        settings: `section.key=value` each, over those of a small engine.
        write: Writes the script and returns what runs it.
    """
    command = write(directory / "script.json", script)
    async with _engine(directory, directory, (*_SMALL, *settings), command=command) as engine:
        yield engine


@asynccontextmanager
async def scripted_server(
    directory: Path,
    tokenizer: Path,
    engine: EngineLink,
    *,
    settings: Sequence[str] = (),
    checker_command: Sequence[str] | None = None,
) -> AsyncIterator[RunningServer]:
    """Serves a scripted engine in the words of a tokenizer, as `models/tiny`."""
    facts = engine.facts
    assert facts is not None
    info = replace(INFO, vocabulary_size=facts.vocabulary_size, context_tokens=facts.context_tokens)
    async with running_server(
        directory,
        engine=engine,
        checkpoint=tokenizer,
        info=info,
        settings=settings,
        checker_command=checker_command,
    ) as running:
        yield running


@asynccontextmanager
async def _engine(
    directory: Path,
    checkpoint: Path,
    settings: Sequence[str],
    *,
    command: Sequence[str],
) -> AsyncIterator[EngineLink]:
    config = loopback_config(directory, settings).engine
    engine = await EngineLink.start(config, checkpoint, command=command)
    try:
        yield engine
    finally:
        await engine.close()
