"""The server's log: structured lines on standard error. What users say is never in it."""

import logging
from typing import TextIO

import grpc
import structlog
from structlog.typing import Processor

from antiphon_server.config import LoggingConfig


def configure_logging(config: LoggingConfig, stream: TextIO) -> None:
    """Sets up this process's log, once, at start; lines of libraries go the same way."""
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
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                *_renderers(config, is_terminal=stream.isatty()),
            ],
        )
    )
    handler.addFilter(_is_news)
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(config.level.upper())


def _is_news(record: logging.LogRecord) -> bool:
    """Leaves out what the transport calls an error and is none: a caller that went away."""
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, grpc.aio.InternalError)


def _renderers(config: LoggingConfig, *, is_terminal: bool) -> list[Processor]:
    if config.format == "json":
        return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    return [
        structlog.dev.ConsoleRenderer(
            colors=is_terminal, exception_formatter=structlog.dev.plain_traceback
        )
    ]
