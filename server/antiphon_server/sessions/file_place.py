"""Where a store's file was when it was opened."""

import sqlite3
from pathlib import Path


class FilePlace:
    """Where the file was opened. Writes to one that has gone from there would be lost."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = _identity(path)

    def check(self) -> None:
        """Raises sqlite3.OperationalError where the file is not there any more."""
        if _identity(self._path) != self._file:
            raise sqlite3.OperationalError(f"{self._path} was moved, deleted or replaced")


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        state = path.stat()
    except OSError:
        return None
    return state.st_dev, state.st_ino
