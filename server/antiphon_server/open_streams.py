"""Streams that are told before they end."""

import contextlib
from collections.abc import Iterator
from typing import Protocol

from antiphon.v1.types_pb2 import GoAway

from antiphon_engine.api.errors import AntiphonError


class OpenStream(Protocol):
    """A stream that lasts as long as its caller wants. Neither call waits; both are idempotent."""

    def send_away(self, go_away: GoAway, end: AntiphonError) -> None:
        """Tells the caller, takes nothing new, and ends with `end` once nothing runs."""

    def cut_off(self, end: AntiphonError) -> None:
        """Ends with `end`, and what runs on it fails with that."""


class OpenStreams:
    """Those that are open now. Used on one event loop."""

    def __init__(self) -> None:
        self._streams: set[OpenStream] = set()

    @contextlib.contextmanager
    def hold(self, stream: OpenStream) -> Iterator[None]:
        """Counts a stream as open until the block ends."""
        self._streams.add(stream)
        try:
            yield
        finally:
            self._streams.discard(stream)

    def send_away(self, go_away: GoAway, end: AntiphonError) -> None:
        """Sends all away."""
        for stream in list(self._streams):
            stream.send_away(go_away, end)

    def cut_off(self, end: AntiphonError) -> None:
        """Cuts all off."""
        for stream in list(self._streams):
            stream.cut_off(end)
