"""When readers get the news of their requests: at once, or by turns where the loop is behind."""

import asyncio
import math
from typing import Final, Protocol

LATE_NS: Final = 4_000_000
"""A step that is read so long after its end tells of a loop that is behind."""
EARLY_NS: Final = 1_500_000
"""One that is read sooner tells of a loop that keeps up."""
ALWAYS_AT_ONCE: Final = 32
"""So few streams are never what keeps the loop."""
_MIN_SHARE: Final = 1 / 2
_MAX_WAIT_S: Final = 0.03
"""How long news wait for a further step at most."""


class Announced(Protocol):
    """A request's stream."""

    @property
    def is_urgent(self) -> bool:
        """Whether it has other news than more tokens."""

    def announce(self) -> None:
        """Brings its news to its reader."""


class Announcements:
    """Streams that have news, those first that wait longest. Used on one event loop.

    A step has news for all streams at the same moment, and a message costs the same with one token
    or with two. So where steps are read late, a read brings its news to half of the streams, about,
    and the others get it with the next step's. Nobody waits for more than one further step, and a
    start or an end waits for none.
    """

    def __init__(self) -> None:
        self._waiting: dict[Announced, None] = {}
        self._num_left = 0  # The first so many have waited for this read.
        self._share = 1.0
        self._timer: asyncio.TimerHandle | None = None

    def add(self, stream: Announced) -> None:
        """Notes that a stream has news."""
        self._waiting[stream] = None

    def bring(self, lag_ns: int) -> None:
        """Brings news to readers, behind all that a read held.

        Args:
            lag_ns: How long ago the last step in it had ended.
        """
        if lag_ns > LATE_NS:
            self._share = max(_MIN_SHARE, self._share / 2)
        elif lag_ns < EARLY_NS:
            self._share = min(1.0, self._share * 1.25)
        waiting, self._waiting = self._waiting, {}
        num_due = max(self._num_left, ALWAYS_AT_ONCE, math.ceil(len(waiting) * self._share))
        for index, stream in enumerate(waiting):
            if index < num_due or stream.is_urgent:
                stream.announce()
            else:
                self._waiting[stream] = None
        self._num_left = len(self._waiting)
        self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._waiting:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(_MAX_WAIT_S, self._bring_rest)

    def _bring_rest(self) -> None:
        self._timer = None
        waiting, self._waiting, self._num_left = self._waiting, {}, 0
        for stream in waiting:
            stream.announce()
