"""What people see while the server starts."""

import contextlib
import time
from collections.abc import Callable
from typing import Final, TextIO

_INTERVAL_S: Final = 0.2
_LINE_INTERVAL_S: Final = 5.0


class Progress:
    """Shows how far a long piece of work is: one line that moves, or a line now and then.

    May be called from any thread, but from one at a time.
    """

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._moves = stream.isatty()
        self._stage = ""
        self._next_s = 0.0

    def __call__(self, stage: str, done: int, total: int) -> None:
        """Shows that `done` of `total` units of the stage are done; total 0: not known."""
        now_s = self._clock()
        if stage == self._stage and now_s < self._next_s and done < total:
            return
        if stage != self._stage:
            self.end()
        self._stage = stage
        self._next_s = now_s + (_INTERVAL_S if self._moves else _LINE_INTERVAL_S)
        share = f" {100 * done // total:3d} %" if total else ""
        self._write(f"\r\x1b[K{stage}{share}" if self._moves else f"{stage}{share}\n")

    def end(self) -> None:
        """Ends the line that moves, if there is one."""
        if self._stage and self._moves:
            self._write("\n")
        self._stage = ""

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError):  # Nobody watches any more.
            self._stream.write(text)
            self._stream.flush()
