"""How an engine process is started."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

from antiphon_engine.api.config import EngineConfig
from antiphon_engine.api.errors import StartupError
from antiphon_engine.api.linked_process import LinkedProcess, spawn


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLogging:
    """How an engine process logs, on standard error."""

    level: str = "info"
    as_json: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSurroundings:
    """What an engine process has around it."""

    logging: EngineLogging = field(default_factory=EngineLogging)
    cache_dir: str = ""
    """Where it may keep what saves later starts time; empty: nowhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStart:
    """What an engine process is told on its standard input, as JSON."""

    config: EngineConfig
    checkpoint: str
    """The directory that holds configuration and weights."""
    surroundings: EngineSurroundings = field(default_factory=EngineSurroundings)


def engine_command() -> list[str]:
    """Returns the command that runs the engine in this process's Python."""
    return [sys.executable, "-m", "antiphon_engine"]


def spawn_engine(command: Sequence[str], start: EngineStart) -> LinkedProcess:
    """Starts an engine process.

    Raises:
        StartupError: the command can't be run.
    """
    try:
        return spawn(command, start)
    except OSError as error:
        raise StartupError(f"The engine can't be started by {command[0]!r}: {error}.") from error
