"""A stream's hold on a session."""

import asyncio
from typing import Final

from antiphon.v1.types_pb2 import GoAway

from antiphon_engine.api.errors import AntiphonError


class Attachment:
    """What a session has to tell the stream that drives it, beside the turns' events.

    News of one kind replaces older news, so it takes the same room however slow the stream is.
    """

    def __init__(self, since_ns: int) -> None:
        self.since_ns: Final = since_ns
        """When the stream came, on the wall clock."""
        self.wake: Final = asyncio.Event()
        """Set when there is news of any kind; the stream clears it."""
        self.own_turn_ids: Final[set[str]] = set()
        """Turns whose events the stream gets: their changes are no news."""
        self.changed = False
        """Whether another call changed the session since the stream last told."""
        self.go_away: GoAway | None = None
        """The stream is to end."""
        self.end: AntiphonError | None = None
        """What it then ends with."""

    def note_change(self, turn_id: str) -> None:
        """Says that the session changed.

        Args:
            turn_id: The turn that changed it; empty: something else.
        """
        if turn_id not in self.own_turn_ids:
            self.changed = True
            self.wake.set()

    def send_away(self, go_away: GoAway, end: AntiphonError) -> None:
        """Says that the stream is to end, once it has told of its turns."""
        self.go_away = go_away
        self.end = end
        self.wake.set()
