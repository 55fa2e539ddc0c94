"""Streams that grow old: told to go away first, and cut off when they stay."""

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Final, Protocol

from antiphon.v1.types_pb2 import GoAway

from antiphon_engine.api.errors import AntiphonError, ErrorReason
from antiphon_server.times import NS_PER_S, to_duration

_RETRY_DELAY_S: Final = 0.1
"""Others that are as old come back at the same time."""


class LongCall(Protocol):
    """A call that lasts as long as what runs in it. Neither method waits; both are idempotent."""

    def send_away(self, go_away: GoAway, end: AntiphonError) -> None:
        """Takes nothing new, and ends with `end` once nothing runs; tells the caller so first."""

    def cut_off(self, end: AntiphonError) -> None:
        """Ends with `end`, and what runs in it fails with that."""


class StreamAges:
    """How old streams may grow. Used on one event loop."""

    def __init__(self, *, max_age_s: float = 0.0, grace_s: float = 0.0) -> None:
        """Sets the age at which they are told, 0 for none, and how long they may stay then."""
        self._max_age_s = max_age_s
        self._grace_s = grace_s

    @contextlib.contextmanager
    def watch(self, call: LongCall) -> Iterator[None]:
        """Sends a stream away in time, unless the block ends before."""
        timers: list[asyncio.TimerHandle] = []
        if self._max_age_s:
            loop = asyncio.get_running_loop()
            go_away = GoAway(
                reason=GoAway.REASON_MAX_AGE, time_left=to_duration(round(self._grace_s * NS_PER_S))
            )
            end = self._too_old()
            timers = [
                loop.call_later(self._max_age_s, call.send_away, go_away, end),
                loop.call_later(self._max_age_s + self._grace_s, call.cut_off, end),
            ]
        try:
            yield
        finally:
            for timer in timers:
                timer.cancel()

    def _too_old(self) -> AntiphonError:
        return AntiphonError(
            ErrorReason.DRAINING,
            f"the connection has reached its age limit of {self._max_age_s:g} s; open a new one",
            metadata={"max_age_s": f"{self._max_age_s:g}"},
            retry_delay_s=_RETRY_DELAY_S,
        )
