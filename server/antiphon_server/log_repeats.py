"""Keeps a log from saying the same all over again."""

import logging
import threading
import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Final

import structlog

from antiphon_engine.api.errors import ErrorReason

WINDOW_S: Final = 60.0
MAX_KINDS: Final = 256
"""Kinds of lines that are counted apart; further ones count as one."""
_FURTHER: Final = ("further", "")
_TOLD_TO_WAIT: Final = frozenset({ErrorReason.ENGINE_DOWN.value})
"""Reasons of refusals that a waiting client hears every few seconds until it is served."""


@dataclass(slots=True)
class _Window:
    """A minute in which a kind of line was said."""

    end_s: float
    num: int = 0
    num_left_out: int = 0


class RepeatLimit(logging.Filter):
    """Lets so many lines a minute through that say the same, and then tells how many it kept.

    What is limited are lines of a level from warning on, and those that have a reason; two are of
    a kind where event and reason are the same. A refusal that tells callers to wait for the engine
    is said once a minute: each of them comes again and again, and nothing else is to be learnt.
    Any thread.
    """

    def __init__(
        self,
        max_a_minute: int,
        *,
        on_drop: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Sets how many.

        Args:
            max_a_minute: Lines of a kind.
            on_drop: Is told of each line that is left out.
            clock: Monotonic, in seconds.
        """
        super().__init__()
        self._max = max_a_minute
        self._on_drop = on_drop
        self._clock = clock
        self._lock = threading.Lock()
        self._windows: dict[Hashable, _Window] = {}
        self._look_s = float("inf")
        """When the first window ends."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a line goes out."""
        now_s = self._clock()
        if now_s >= self._look_s:
            self.tell(now_s)
        kind = _kind_of(record)
        if kind is None:
            return True
        with self._lock:
            passes = self._count(kind, now_s, max_lines=1 if _tells_to_wait(record) else self._max)
        if not passes:
            self._on_drop()
        return passes

    def tell(self, now_s: float = float("inf")) -> None:
        """Logs a line for each kind of which lines were left out until then."""
        with self._lock:
            ended = [kind for kind, window in self._windows.items() if window.end_s <= now_s]
            kept = [(kind, self._windows.pop(kind).num_left_out) for kind in ended]
            ends = (window.end_s for window in self._windows.values())
            self._look_s = min(ends, default=float("inf"))
        for kind, num in kept:
            if num:
                assert isinstance(kind, tuple)
                log = structlog.get_logger()
                log.info("repeated lines left out", of=kind[0], of_reason=kind[1], num=num)

    def _count(self, kind: Hashable, now_s: float, *, max_lines: int) -> bool:
        if kind not in self._windows and len(self._windows) >= MAX_KINDS:
            kind = _FURTHER
        window = self._windows.get(kind)
        if window is None:
            window = self._windows[kind] = _Window(now_s + WINDOW_S)
            self._look_s = min(self._look_s, window.end_s)
        window.num += 1
        if window.num <= max_lines:
            return True
        window.num_left_out += 1
        return False


def _tells_to_wait(record: logging.LogRecord) -> bool:
    return record.levelno < logging.WARNING and _reason_of(record) in _TOLD_TO_WAIT


def _reason_of(record: logging.LogRecord) -> str:
    return str(record.msg.get("reason", "")) if isinstance(record.msg, Mapping) else ""


def _kind_of(record: logging.LogRecord) -> Hashable:
    """Returns what is the same in lines that say the same; None: it is not limited."""
    fields = record.msg if isinstance(record.msg, Mapping) else {}
    reason = _reason_of(record)
    if record.levelno < logging.WARNING and not reason:
        return None
    # Libraries' lines are told apart by their text without what is put into it.
    return str(fields.get("event", record.msg))[:200], reason
