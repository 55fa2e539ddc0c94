"""When readers get the news of their requests: in their order, a few in each round of the loop."""

import asyncio
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final, Protocol

NUM_A_ROUND: Final = 16
"""So many streams get their news in one round of the event loop: a millisecond's work, about."""


class Announced(Protocol):
    """A request's stream."""

    def announce(self) -> None:
        """Brings its news to its reader."""


class Announcements:
    """Streams that have news, those first that wait longest. Used on one event loop.

    A step has news for all streams at the same moment, and a message costs the same with one token
    or with two. So streams stand in a line, and each round of the loop serves the next few, whose
    messages are written before the round after it. What comes for a stream that stands in line goes
    out with what it has. So while the loop keeps up, all is told before the next step comes; where
    it does not, everybody waits for one time around at most and gets the more at once.

    A start or an end waits for nobody, nor do a few streams.
    """

    def __init__(self) -> None:
        self._line: dict[Announced, None] = {}
        self._urgent: dict[Announced, None] = {}
        self._next_round: asyncio.Handle | None = None

    def add(self, streams: Iterable[Announced]) -> None:
        """Notes that streams have news; those that stand in line keep their places."""
        self._line.update(dict.fromkeys(streams))

    def add_urgent(self, stream: Announced) -> None:
        """Notes that a stream has other news than more tokens."""
        self._urgent[stream] = None

    def bring(self) -> None:
        """Brings news to readers, behind all that a read held."""
        urgent, self._urgent = self._urgent, {}
        for stream in urgent:
            self._line.pop(stream, None)
            stream.announce()
        if self._next_round is None:
            self._serve()

    def _serve(self) -> None:
        self._next_round = None
        for stream in self._taken():
            stream.announce()
        if self._line:
            self._next_round = asyncio.get_running_loop().call_soon(self._serve)

    def _taken(self) -> Iterator[Announced]:
        for stream in list(islice(self._line, NUM_A_ROUND)):
            del self._line[stream]
            yield stream
