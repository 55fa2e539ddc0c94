"""The server's log: structured lines on standard error. What users say is never in it."""

import logging
from typing import TextIO

import grpc
import structlog
from structlog.typing import Processor

from antiphon_server.config import LoggingConfig
from antiphon_server.log_repeats import RepeatLimit
from antiphon_server.log_thread import LogThread, RawStream
from antiphon_server.telemetry.figures import TelemetryFigures
from antiphon_server.terminal_lines import shorten


class Log:
    """This process's log. Closed at the end, so that no line is lost."""

    def __init__(self, handler: logging.Handler, repeats: RepeatLimit) -> None:
        """Takes over what writes, and what limits repeats."""
        self._handler = handler
        self._repeats = repeats

    def close(self) -> None:
        """Tells what was left out, and waits for what is still to be written, 2 s at most."""
        self._repeats.tell()
        self._handler.close()


def configure_logging(
    config: LoggingConfig,
    stream: TextIO | RawStream,
    *,
    figures: TelemetryFigures | None = None,
    on_thread: bool = False,
) -> Log:
    """Sets up this process's log, once, at start; lines of libraries go the same way.

    Args:
        config: The settings.
        stream: Where it goes.
        figures: Where lines are counted that are left out.
        on_thread: Whether a thread writes, so that nobody waits for whoever reads.
    """
    figures = figures or TelemetryFigures()
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    handler: logging.Handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                *_renderers(config, is_terminal=stream.isatty()),
            ],
        )
    )
    if on_thread:
        handler = LogThread(handler, on_drop=figures.count_log_line_without_room)
    repeats = RepeatLimit(config.max_repeats_per_minute, on_drop=figures.count_log_line_repeated)
    handler.addFilter(_is_news)
    handler.addFilter(repeats)
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(config.level.upper())
    return Log(handler, repeats)


def _is_news(record: logging.LogRecord) -> bool:
    """Leaves out what the transport calls an error and is none: a caller that went away."""
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, grpc.aio.InternalError)


def _renderers(config: LoggingConfig, *, is_terminal: bool) -> list[Processor]:
    if config.format == "json":
        return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    renderer = structlog.dev.ConsoleRenderer(
        colors=is_terminal,
        exception_formatter=structlog.dev.plain_traceback,
        sort_keys=not is_terminal,
    )
    return [shorten, renderer] if is_terminal else [renderer]
