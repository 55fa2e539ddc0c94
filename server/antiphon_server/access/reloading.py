"""Files that are read again when they change, while the server runs."""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Generic, TypeVar

import structlog

from antiphon_engine.api.errors import StartupError

T = TypeVar("T")

RELOAD_INTERVAL_S: Final = 1.0
"""How often files are looked at."""

_Signature = tuple[tuple[int, int, int] | None, ...]


class ReloadedFiles(Generic[T]):
    """What a few files say together, as of the last time that they made sense.

    A change that makes none is logged once and leaves the earlier value in force. `value` may be
    read from any thread.
    """

    def __init__(self, paths: Sequence[Path], load: Callable[[], T], *, what: str) -> None:
        """Reads the files.

        Args:
            paths: What `load` reads.
            load: Returns the value, or raises StartupError.
            what: What they are, for the log.

        Raises:
            StartupError: they make no sense.
        """
        self._paths = tuple(paths)
        self._load = load
        self._what = what
        self._seen = self._signature()
        self.value: T = load()

    def reload_if_changed(self) -> bool:
        """Reads the files again if they changed; says whether the value is another. Blocks."""
        signature = self._signature()
        if signature == self._seen:
            return False
        # Taken before the files are read: what changes meanwhile is seen the next time.
        self._seen = signature
        log = structlog.get_logger()
        try:
            self.value = self._load()
        except (StartupError, OSError) as error:  # Files may change while they are read.
            log.warning(
                f"changed {self._what} can't be used; what was read before holds", cause=str(error)
            )
            return False
        log.info(f"{self._what} read again")
        return True

    def _signature(self) -> _Signature:
        return tuple(_state_of(path) for path in self._paths)


async def keep_reloading(
    looks: Sequence[Callable[[], bool]], *, interval_s: float = RELOAD_INTERVAL_S
) -> None:
    """Looks at files again and again until it is cancelled; each look blocks for a moment."""
    while looks:
        await asyncio.sleep(interval_s)
        for look in looks:
            await asyncio.to_thread(look)


def _state_of(path: Path) -> tuple[int, int, int] | None:
    with contextlib.suppress(OSError):
        state = path.stat()
        return state.st_mtime_ns, state.st_size, state.st_ino
    return None
