"""A sign of life on standard error while something takes longer than a moment."""

import sys
import time
from types import TracebackType
from typing import Final, Self

PATIENCE_S: Final = 1.0
"""Nothing is shown of what takes less."""
_INTERVAL_S: Final = 0.2


class Progress:
    """Counts what is done, and shows it to a person at a terminal."""

    def __init__(self, noun: str) -> None:
        self._noun = noun
        self._num_done = 0
        self._next_s = time.monotonic() + PATIENCE_S
        self._width = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._width:
            self._write(" " * self._width + "\r")

    def advance(self) -> None:
        """Notes that one more is done."""
        self._num_done += 1
        if time.monotonic() < self._next_s or not sys.stderr.isatty():
            return
        self._next_s = time.monotonic() + _INTERVAL_S
        text = f"{self._num_done} {self._noun}..."
        self._width = len(text)
        self._write(text + "\r")

    def _write(self, text: str) -> None:
        print(text, end="", file=sys.stderr, flush=True)
