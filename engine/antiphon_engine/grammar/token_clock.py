"""How long threads are at tokens of guided outputs, in processor time.

So a busy machine fails nobody. What is under way inside of a library can't be stopped: a thread
that is over its limit is left behind, and another takes its place.
"""

import threading
import time

from antiphon_engine.api.errors import ErrorReason
from antiphon_engine.grammar.base import GrammarError
from antiphon_engine.grammar.guide import Guide

MAX_LEFT_BEHIND = 8
"""Threads that may be at work on tokens of requests that have failed."""
_HARD_LIMIT_S = 60.0
"""Of a token on the clock, in which a thread has hardly had the processor."""


class TokenClock:
    """Runs while a thread is at a token."""

    def __init__(self, thread: threading.Thread, guide: Guide) -> None:
        """Begins, by `thread` itself, with the next token of a guide."""
        self._thread = thread
        self._guide = guide
        self._begin_s = time.thread_time()
        self._begin_wall_s = time.monotonic()
        self._begin_excused_s = guide.excused_s

    def used_s(self) -> float:
        """Returns the thread's processor time since the beginning; called by itself."""
        return time.thread_time() - self._begin_s

    def excused_s(self) -> float:
        """Returns how much of it is no time of a token: compiling again. Infinite meanwhile."""
        return self._guide.excused_s - self._begin_excused_s

    def is_over(self, limit_s: float, *, excused_s: float = 0.0) -> bool:
        """Returns whether it is at it for longer, what is excused aside; called by any thread."""
        if self._thread.ident is None or not self._thread.is_alive():
            return False
        if time.monotonic() - self._begin_wall_s > max(_HARD_LIMIT_S, 20 * limit_s):
            return True
        clock_id = time.pthread_getcpuclockid(self._thread.ident)
        return time.clock_gettime(clock_id) - self._begin_s - excused_s > limit_s


def too_complex(limit_s: float) -> GrammarError:
    """Returns what an output fails with one of whose tokens took too long."""
    limit_ms = round(1000 * limit_s)
    return GrammarError(
        ErrorReason.CONSTRAINT_TOO_COMPLEX,
        f"The constraint took more than {limit_ms} ms for one token; simplify it, or raise "
        "engine.grammar_step_limit_ms.",
        metadata={"limit_ms": str(limit_ms)},
    )
