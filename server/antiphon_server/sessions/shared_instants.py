"""Instants at which several do something together."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

MOST_CALLS: Final = 32
"""At one instant: a few milliseconds' work of the event loop, about."""

Call = Callable[[], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """When something may be done, on the event loop's clock."""

    earliest_s: float
    own_s: float
    """When it is done where nobody else does something meanwhile."""
    latest_s: float


class Instant:
    """One that some have joined. Used on one event loop."""

    __slots__ = ("_calls", "_over", "_timer", "when_s")

    def __init__(self, when_s: float, over: Callable[["Instant"], None]) -> None:
        self.when_s: Final = when_s
        self._over = over
        self._calls: dict[Call, None] = {}
        self._timer = asyncio.get_running_loop().call_at(when_s, self._ring)

    @property
    def has_room(self) -> bool:
        """Whether another may join."""
        return len(self._calls) < MOST_CALLS

    def add(self, call: Call) -> None:
        """Has something called then. Not twice."""
        assert call not in self._calls, "one has joined already"
        self._calls[call] = None

    def leave(self, call: Call) -> None:
        """Has it not called. Nothing where the instant is over."""
        if self._calls.pop(call, self) is None and not self._calls:
            self._timer.cancel()
            self._over(self)

    def _ring(self) -> None:
        calls, self._calls = self._calls, {}
        self._over(self)
        for call in calls:
            call()


class SharedInstants:
    """Joins those that do something within the same time. Used on one event loop.

    Who comes takes an instant that others wait for already, if it lies within its time and has
    room, and else makes one. So a few do all at once, and many are spread over their own times.
    """

    def __init__(self) -> None:
        self._coming: dict[Instant, None] = {}

    def join(self, window: Window, call: Call) -> Instant:
        """Has something called within its time; returns when, which can be left."""
        for instant in self._coming:
            if window.earliest_s <= instant.when_s <= window.latest_s and instant.has_room:
                break
        else:
            instant = Instant(window.own_s, self._forget)
            self._coming[instant] = None
        instant.add(call)
        return instant

    def _forget(self, instant: Instant) -> None:
        del self._coming[instant]
