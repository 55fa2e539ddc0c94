"""When readers get the news of their requests: in their order, a few in each round of the loop."""

import asyncio
from collections.abc import Iterable
from itertools import islice
from typing import Final, Protocol

NUM_A_ROUND: Final = 16
"""So many streams get their news in one round of the event loop: a millisecond's work, about."""
NUM_URGENT_A_ROUND: Final = 4
"""So many starts and ends are told in one: each has its own task work for a millisecond, about."""


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

    Nobody is held back for a fuller message: where the loop is full the line fills them by itself,
    and where it is not, a token that waits only comes later.

    A start or an end waits for no tokens, nor do a few streams. But many of these at a time, such
    as those of a batch that was sent at once, have a line of their own, so that the tokens of all
    others go out between them.
    """

    def __init__(self) -> None:
        self._line: dict[Announced, None] = {}
        self._urgent: dict[Announced, None] = {}
        self._next_round: asyncio.Handle | None = None

    def add(self, streams: Iterable[Announced]) -> None:
        """Notes that streams have news; those that stand in line keep their places."""
        self._line.update(dict.fromkeys(streams))
        for stream in self._urgent:
            self._line.pop(stream, None)

    def add_urgent(self, stream: Announced) -> None:
        """Notes that a stream has other news than more tokens."""
        self._line.pop(stream, None)
        self._urgent[stream] = None

    def bring(self) -> None:
        """Brings news to readers, behind all that a read held."""
        if self._next_round is None:
            self._serve()
        else:
            _announce_first(self._urgent, NUM_URGENT_A_ROUND)

    def _serve(self) -> None:
        self._next_round = None
        _announce_first(self._urgent, NUM_URGENT_A_ROUND)
        _announce_first(self._line, NUM_A_ROUND)
        if self._line or self._urgent:
            self._next_round = asyncio.get_running_loop().call_soon(self._serve)


def _announce_first(line: dict[Announced, None], most: int) -> None:
    """Announces the first of a line, and takes them out."""
    for stream in list(islice(line, most)):
        del line[stream]
        stream.announce()
