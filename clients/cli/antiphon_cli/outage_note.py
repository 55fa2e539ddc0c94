"""Tells a person who waits for an answer that the server is being looked for."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from antiphon_client import ServerError

PATIENCE_S: Final = 1.0
"""What is over sooner is not worth a word."""

_TEXT: Final = " (reconnecting...)"


class OutageNote:
    """Shows a note while the server is lost and somebody waits, and takes it back afterwards."""

    def __init__(self, *, patience_s: float = PATIENCE_S) -> None:
        self._patience_s = patience_s
        self._lock = threading.Lock()
        self._is_lost = False
        self._is_awaited = False
        self._is_shown = False
        self._timer: threading.Timer | None = None

    def watch(self, failure: ServerError | None) -> None:
        """Is told why the server was lost, or that it is back; from any thread."""
        with self._lock:
            self._is_lost = failure is not None
            self._follow()

    @property
    def is_lost(self) -> bool:
        """Whether the server is being looked for."""
        with self._lock:
            return self._is_lost

    @contextmanager
    def awaiting(self) -> Iterator[None]:
        """Somebody waits for an answer in here."""
        self._set_awaited(True)
        try:
            yield
        finally:
            self._set_awaited(False)

    def _set_awaited(self, is_awaited: bool) -> None:
        with self._lock:
            self._is_awaited = is_awaited
            self._follow()

    def _follow(self) -> None:
        """Starts the wait for the note, or ends it and the note; the lock is held."""
        if self._is_lost and self._is_awaited:
            if self._timer is None:
                self._timer = threading.Timer(self._patience_s, self._show)
                self._timer.daemon = True
                self._timer.start()
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._is_shown:
            self._is_shown = False
            if sys.stderr.isatty():
                back = "\b" * len(_TEXT)
                _write(back + " " * len(_TEXT) + back)

    def _show(self) -> None:
        with self._lock:
            if self._timer is None:
                return
            self._is_shown = True
            _write(_TEXT if sys.stderr.isatty() else _TEXT.strip() + "\n")


def _write(text: str) -> None:
    print(text, end="", file=sys.stderr, flush=True)
