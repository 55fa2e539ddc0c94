"""Calls that may last: told before they end, where they can tell their caller, and cut off."""

import contextlib
from collections.abc import Iterator

from antiphon.v1.types_pb2 import GoAway

from antiphon_engine.api.errors import AntiphonError
from antiphon_server.stream_ages import LongCall, StreamAges


class LongCalls:
    """Those that are open now. Used on one event loop."""

    def __init__(self, ages: StreamAges | None = None) -> None:
        """Sets how old streams may grow; None: as old as they like."""
        self._ages = ages or StreamAges()
        self._calls: set[LongCall] = set()
        self._cut: AntiphonError | None = None

    @property
    def num_open(self) -> int:
        """How many are open."""
        return len(self._calls)

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

    @contextlib.contextmanager
    def hold_stream(self, stream: LongCall) -> Iterator[None]:
        """The same for a stream, which is sent away when it grows too old."""
        with self.hold(stream), self._ages.watch(stream):
            yield

    def send_away(self, go_away: GoAway, end: AntiphonError) -> None:
        """Sends all away."""
        for call in list(self._calls):
            call.send_away(go_away, end)

    def cut_off(self, end: AntiphonError) -> None:
        """Cuts all off, also those that are only just coming."""
        self._cut = end
        for call in list(self._calls):
            call.cut_off(end)
