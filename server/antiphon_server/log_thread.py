"""Writes the log on a thread, so that whoever reads it slowly, or not at all, holds up nobody."""

import contextvars
import io
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final

MAX_WAITING_LINES: Final = 4096
CLOSE_LIMIT_S: Final = 2.0
"""How long a reader may hold up the end of a process."""


class LogThread(logging.Handler):
    """Hands lines to another handler, on a thread. Any thread may log.

    A line that finds no room is left out; as soon as there is room, a line tells how many were.
    """

    def __init__(
        self,
        target: logging.Handler,
        *,
        on_drop: Callable[[], None] = lambda: None,
        max_waiting_lines: int = MAX_WAITING_LINES,
    ) -> None:
        """Starts the thread.

        Args:
            target: What writes; used by this alone from now on.
            on_drop: Is told of each line that is left out, on the thread that logs it.
            max_waiting_lines: How many may wait.
        """
        super().__init__()
        self._target = target
        self._on_drop = on_drop
        self._max_waiting_lines = max_waiting_lines
        self._waiting: deque[tuple[logging.LogRecord, contextvars.Context]] = deque()
        self._num_left_out = 0
        self._some = threading.Event()
        self._closing = False
        self._thread = threading.Thread(target=self._work, name="log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Takes a line in. Under the handler's lock, which is held for no longer than this."""
        if self._closing or len(self._waiting) >= self._max_waiting_lines:
            self._num_left_out += 1
            self._on_drop()
            return
        if record.args:  # What it is about may change before it is written.
            record.msg, record.args = record.getMessage(), None
        self._waiting.append((record, contextvars.copy_context()))
        self._some.set()

    def close(self) -> None:
        """Writes what waits, in CLOSE_LIMIT_S at most. Idempotent."""
        self._closing = True
        self._some.set()
        self._thread.join(CLOSE_LIMIT_S)
        super().close()

    def _work(self) -> None:
        while not (self._closing and not self._waiting):
            self._some.wait()
            # Cleared before the lines are looked at, so that a later one is not overlooked.
            self._some.clear()
            while self._waiting:
                record, context = self._waiting.popleft()
                context.run(self._target.handle, record)
                if len(self._waiting) < self._max_waiting_lines // 2:
                    self._tell_left_out()
                time.sleep(0)  # Lets the event loop have the interpreter.

    def _tell_left_out(self) -> None:
        if not self._num_left_out:
            return
        self.acquire()
        num, self._num_left_out = self._num_left_out, 0
        self.release()
        line = f"{num} lines were left out: whoever reads this log was too slow"
        self._target.handle(
            logging.LogRecord(__name__, logging.WARNING, "", 0, line, args=None, exc_info=None)
        )


class RawStream(io.TextIOBase):
    """Text to a file descriptor, without a buffer.

    A thread that is stuck in a buffered stream keeps the interpreter from its end.
    """

    def __init__(self, descriptor: int) -> None:
        """Sets the descriptor, which stays its owner's."""
        self._descriptor = descriptor

    def write(self, text: str) -> int:
        """Writes all of it."""
        data = memoryview(text.encode("utf-8", errors="backslashreplace"))
        while data:
            data = data[os.write(self._descriptor, data) :]
        return len(text)

    def isatty(self) -> bool:
        """Whether a terminal reads it."""
        return os.isatty(self._descriptor)
