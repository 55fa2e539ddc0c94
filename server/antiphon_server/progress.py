"""What people see while the server starts."""

import contextlib
import time
from collections.abc import Callable
from typing import Final, TextIO

import structlog

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
        if not _is_due(stage, done, total, before=self._stage, early=now_s < self._next_s):
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


class LoggedProgress:
    """Tells the log how far a long piece of work is, where its lines are for programs.

    May be called from any thread, but from one at a time.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._stage = ""
        self._next_s = 0.0

    def __call__(self, stage: str, done: int, total: int) -> None:
        """Tells that `done` of `total` units of the stage are done; total 0: not known."""
        now_s = self._clock()
        if not _is_due(stage, done, total, before=self._stage, early=now_s < self._next_s):
            return
        self._stage, self._next_s = stage, now_s + _LINE_INTERVAL_S
        structlog.get_logger().info("starting", stage=stage, done=done, total=total)

    def end(self) -> None:
        """Begins anew."""
        self._stage = ""


def _is_due(stage: str, done: int, total: int, *, before: str, early: bool) -> bool:
    """Whether to tell of a stage: its begin and end always, what is between now and then."""
    return stage != before or not early or done >= total
