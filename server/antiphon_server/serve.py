"""Runs a server in the foreground until it is told to stop."""

import asyncio
import atexit
import contextlib
import gc
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import structlog

from antiphon_engine.api.checkpoint import CheckpointInfo, inspect_checkpoint, resolve_model
from antiphon_engine.api.errors import StartupError
from antiphon_engine.api.link import EngineLink
from antiphon_engine.api.process import EngineLogging, EngineSurroundings
from antiphon_server.app import Server
from antiphon_server.config import Config
from antiphon_server.event_loop import new_event_loop
from antiphon_server.log_thread import RawStream
from antiphon_server.logs import configure_logging
from antiphon_server.model_loading import load_text_side, served_model
from antiphon_server.open_files import allow_open_files
from antiphon_server.progress import LoggedProgress, Progress
from antiphon_server.service_notices import ServiceNotices
from antiphon_server.settings import changed, in_force
from antiphon_server.telemetry.figures import TelemetryFigures

FAILED: Final = 2
"""The exit status of a server that could not start."""
_CUT_SHORT: Final = 130
_COLLECTION_THRESHOLDS: Final = (10_000, 20, 20)
"""Cycles are rare here: what a stream makes goes by counting, so looking for them can wait."""

_SWITCH_INTERVAL_S: Final = 0.001
"""How long the event loop waits for the interpreter while the store's thread or one that renders
works: it lets the interpreter go for every message that it writes."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Commands:
    """What runs the server's other processes; None: this Python does."""

    engine: Sequence[str] | None
    checker: Sequence[str] | None


def run(
    config: Config,
    *,
    engine_command: Sequence[str] | None = None,
    checker_command: Sequence[str] | None = None,
    notices: ServiceNotices | None = None,
) -> int:
    """Serves until SIGTERM or SIGINT and returns the exit status; a second signal exits at once.

    Prints one line on standard output once calls are answered; a start that fails, one on standard
    error. Call it from the main thread.

    Args:
        config: The settings in force.
        engine_command: Runs the engine process; None: this Python's engine.
        checker_command: Runs the process that checks constraints; None: this Python's.
        notices: What tells a service manager; None: nobody is told.
    """
    figures = TelemetryFigures()
    log = configure_logging(
        config.logging, RawStream(sys.stderr.fileno()), figures=figures, on_thread=True
    )
    try:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            commands = Commands(engine=engine_command, checker=checker_command)
            serving = _serve(config, commands, notices or ServiceNotices(), figures)
            return runner.run(serving)
    except StartupError as error:
        log.close()
        print(f"antiphon: {error}", file=sys.stderr)
        return FAILED
    finally:
        log.close()


async def _serve(
    config: Config,
    commands: Commands,
    notices: ServiceNotices,
    figures: TelemetryFigures,
) -> int:
    stop = asyncio.Event()
    _catch_signals(stop)
    log = structlog.get_logger()
    log.info("settings", **changed(config))
    log.debug("all settings", **in_force(config))
    allow_open_files(config.server)
    # First of all, so that a second server on the same port fails before it loads anything.
    server = Server(config, figures=figures)
    engine: EngineLink | None = None
    start = asyncio.create_task(_start(config, server, commands))
    life = asyncio.create_task(notices.keep_alive())
    try:
        await _either(start, stop)
        if not start.done():
            return 0
        engine = start.result()
        notices.tell_ready()
        await stop.wait()
        log.info(
            "stopping when what runs has ended; a second Ctrl-C or SIGTERM ends it at once",
            limit_s=config.server.drain_limit_s,
            num_turns=server.draining.num_turns,
            num_calls=server.supervision.num_calls,
        )
    finally:
        notices.tell_stopping()
        start.cancel()
        await asyncio.wait({start})
        if not start.cancelled() and start.exception() is None:
            engine = start.result()
        num_cut_off = await server.close(config.server.drain_limit_s)
        if engine is not None:
            await engine.close()
        life.cancel()
    log.info("stopped", num_cut_off=num_cut_off)
    return 0


async def _start(config: Config, server: Server, commands: Commands) -> EngineLink:
    """Loads the model, starts its engine, serves it and says so."""
    # A store that can't be had is told before the model is waited for.
    await server.open_store()
    await server.answer()
    as_json = config.logging.format == "json"
    progress = LoggedProgress() if as_json else Progress(sys.stderr)
    checkpoint, info = await _in_thread(lambda: _find(config, progress))
    loading = asyncio.create_task(
        EngineLink.start(
            config.engine,
            checkpoint,
            command=commands.engine,
            on_progress=lambda news: progress(news.stage, news.done, news.total),
            surroundings=EngineSurroundings(
                logging=EngineLogging(level=config.logging.level, as_json=as_json),
                cache_dir=config.model.cache_dir,
            ),
        ),
        name="start of the engine",
    )
    try:
        # Each takes seconds, on a core of its own.
        text = await _in_thread(lambda: load_text_side(config, checkpoint, info))
        engine = await loading
    except BaseException:
        loading.cancel()
        await asyncio.wait({loading})
        if not loading.cancelled() and loading.exception() is None:
            await loading.result().close()
        raise
    try:
        progress.end()
        model = served_model(config, text, engine, checker_command=commands.checker)
        if config.constraints.load_at_start:
            model.checker.start()
        await server.open([model])
        # All of this stays: collections that looked at it again would hold streams up.
        gc.collect()
        gc.freeze()
        gc.set_threshold(*_COLLECTION_THRESHOLDS)
        sys.setswitchinterval(_SWITCH_INTERVAL_S)
    except BaseException:
        await engine.close()
        raise
    with contextlib.suppress(OSError):  # A server whose output nobody reads serves all the same.
        print(f"Antiphon serves {model.name} on {server.address}", flush=True)
    return engine


def _find(config: Config, progress: Progress | LoggedProgress) -> tuple[Path, CheckpointInfo]:
    checkpoint = resolve_model(
        config.model.source, cache_dir=Path(config.model.cache_dir), progress=progress
    )
    return checkpoint, inspect_checkpoint(checkpoint)


async def _in_thread(function: Callable[[], T]) -> T:
    """Runs a function in a thread that the process doesn't wait for when it is told to stop."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(outcome: Callable[[], None]) -> None:
        if not future.done():
            outcome()

    def work() -> None:
        outcome = partial(future.set_exception, RuntimeError("loading failed; see above"))
        try:
            outcome = partial(future.set_result, function())
        except StartupError as error:
            outcome = partial(future.set_exception, error)
        finally:
            with contextlib.suppress(RuntimeError):  # The loop is closed: nobody waits any more.
                loop.call_soon_threadsafe(settle, outcome)

    thread = threading.Thread(target=work, name="load", daemon=True)
    thread.start()
    try:
        return await future
    except asyncio.CancelledError:
        # Native code that is still at work must not see the interpreter taken down around it.
        atexit.register(lambda: os._exit(0) if thread.is_alive() else None)
        raise


async def _either(start: "asyncio.Task[EngineLink]", stop: asyncio.Event) -> None:
    """Waits until one of the two is there."""
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait({start, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()


def _catch_signals(stop: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()

    def on_signal() -> None:
        if stop.is_set():
            os._exit(_CUT_SHORT)  # The engine ends by itself when its front end is gone.
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
