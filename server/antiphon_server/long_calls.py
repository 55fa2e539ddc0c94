"""Calls that may last: told before they end, where they can tell their caller, and cut off."""

import contextlib
from collections.abc import Iterator
from typing import Protocol

from antiphon.v1.types_pb2 import GoAway

from antiphon_engine.api.errors import AntiphonError


class LongCall(Protocol):
    """A call that lasts as long as what runs in it. Neither method waits; both are idempotent."""

    def send_away(self, go_away: GoAway, end: AntiphonError) -> None:
        """Takes nothing new, and ends with `end` once nothing runs; tells the caller so first."""

    def cut_off(self, end: AntiphonError) -> None:
        """Ends with `end`, and what runs in it fails with that."""


class LongCalls:
    """Those that are open now. Used on one event loop."""

    def __init__(self) -> None:
        self._calls: set[LongCall] = set()
        self._cut: AntiphonError | None = None

    @contextlib.contextmanager
    def hold(self, call: LongCall) -> Iterator[None]:
        """Counts a call as open until the block ends."""
        self._calls.add(call)
        if self._cut is not None:
            call.cut_off(self._cut)
        try:
            yield
        finally:
            self._calls.discard(call)

    def send_away(self, go_away: GoAway, end: AntiphonError) -> None:
        """Sends all away."""
        for call in list(self._calls):
            call.send_away(go_away, end)

    def cut_off(self, end: AntiphonError) -> None:
        """Cuts all off, also those that are only just coming."""
        self._cut = end
        for call in list(self._calls):
            call.cut_off(end)
