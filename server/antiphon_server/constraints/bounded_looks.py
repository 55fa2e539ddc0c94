"""Looks that may take for ever, and are given up: expressions are matched by backtracking."""

import signal
from collections import OrderedDict
from collections.abc import Callable
from types import FrameType
from typing import Final

LOOK_LIMIT_S: Final = 0.2
"""The processor time that a look may take. All finished outputs wait in one line for theirs."""
_MAX_REMEMBERED: Final = 256


class _OutOfTimeError(Exception):
    """A look has taken as long as it may."""


class BoundedLooks:
    """Takes looks, each within a processor time. For the main thread of a process alone.

    What has once taken too long is given up at once from then on, as long as it is remembered.
    """

    def __init__(self, *, limit_s: float = LOOK_LIMIT_S) -> None:
        """Sets the processor time for a look."""
        self._limit_s = limit_s
        self._given_up: OrderedDict[str, None] = OrderedDict()

    def take(self, by: str, look: Callable[[], str | None]) -> str | None:
        """Returns what a look finds; None also where it takes too long.

        Args:
            by: What the text is compared with: a schema, an expression.
            look: What finds out.
        """
        if by in self._given_up:
            self._given_up.move_to_end(by)
            return None
        before = signal.signal(signal.SIGVTALRM, _give_up)
        try:
            try:
                signal.setitimer(signal.ITIMER_VIRTUAL, self._limit_s)
                return look()
            finally:
                signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        except _OutOfTimeError:
            self._remember(by)
            return None
        finally:
            signal.signal(signal.SIGVTALRM, before)

    def _remember(self, by: str) -> None:
        self._given_up[by] = None
        if len(self._given_up) > _MAX_REMEMBERED:
            self._given_up.popitem(last=False)


def _give_up(_number: int, _frame: FrameType | None) -> None:
    # Python's matcher looks for signals as it goes.
    raise _OutOfTimeError
