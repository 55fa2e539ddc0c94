"""Streams' holds on a session: one may drive it, a few may watch."""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from antiphon.v1.types_pb2 import GoAway

from antiphon_engine.api.errors import AntiphonError, ErrorReason
from antiphon_server.sessions.records import SessionKey
from antiphon_server.sessions.turn import LiveTurn

MAX_UNTOLD_TURNS: Final = 64
"""Turns that a watching stream may be behind with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachmentRequest:
    """How a stream wants to be attached."""

    attachment_id: str = ""
    """An older stream of the same id gives way; empty: none does."""
    takes_over: bool = False
    watches: bool = False


class Attachment:
    """What a session has to tell a stream, beside the events of the turns that it reads.

    News of one kind replaces older news, so it takes the same room however slow the stream is.
    """

    def __init__(self, request: AttachmentRequest, since_ns: int) -> None:
        self.request: Final = request
        self.since_ns: Final = since_ns
        """When the stream came, on the wall clock."""
        self.wake: Final = asyncio.Event()
        """Set when there is news of any kind; the stream clears it."""
        self.own_turn_ids: Final[set[str]] = set()
        """Turns whose events the stream gets: their changes are no news."""
        self.new_turns: Final[deque[LiveTurn]] = deque()
        """Turns that are to be told of from their start."""
        self.changed = False
        """Whether another call changed the session since the stream last told."""
        self.go_away: GoAway | None = None
        """The stream is to end."""
        self.end: AntiphonError | None = None
        """What it then ends with."""
        self.is_cut = False
        """Whether it ends at once, instead of behind the turns that it tells of."""

    def note_change(self, turn_id: str) -> None:
        """Says that the session changed.

        Args:
            turn_id: The turn that changed it; empty: something else.
        """
        if turn_id not in self.own_turn_ids:
            self.changed = True
            self.wake.set()

    def tell_of(self, turn: LiveTurn) -> None:
        """Has the stream tell of a turn once that is durable; a refused one is no news."""
        turn.accepted.add_done_callback(
            lambda accepted: None if accepted.exception() else self._note_turn(turn)
        )

    def send_away(self, go_away: GoAway, end: AntiphonError) -> None:
        """Says that the stream is to end, once it has told of its turns."""
        if not self.is_cut:
            self.go_away = go_away
            self.end = end
            self.wake.set()

    def cut(self, end: AntiphonError, go_away: GoAway | None = None) -> None:
        """Ends the stream at once, whatever it has not told."""
        self.go_away = go_away
        self.end = end
        self.is_cut = True
        self.wake.set()

    def _note_turn(self, turn: LiveTurn) -> None:
        self.own_turn_ids.add(turn.turn_id)
        self.new_turns.append(turn)
        if len(self.new_turns) > MAX_UNTOLD_TURNS:
            self.cut(_too_many_turns())
        self.wake.set()


class Attachments:
    """All streams of one session. Used on one event loop."""

    def __init__(self, key: SessionKey, *, max_watchers: int, wall_ns: Callable[[], int]) -> None:
        self._key = key
        self._max_watchers = max_watchers
        self._wall_ns = wall_ns
        self._driver: Attachment | None = None
        self._watchers: list[Attachment] = []

    def __bool__(self) -> bool:
        return bool(self._all)

    def attach(self, request: AttachmentRequest) -> Attachment:
        """Lets a stream in; those that give way to it end.

        Raises:
            AntiphonError: SESSION_ATTACHED, or OVERLOADED for one watcher too many.
        """
        older = [
            each
            for each in self._all
            if request.attachment_id and each.request.attachment_id == request.attachment_id
        ]
        driver = self._driver if self._driver not in older else None
        num_watchers = sum(each not in older for each in self._watchers)
        if request.watches and num_watchers >= self._max_watchers:
            raise self._too_many_watchers()
        if not request.watches and driver is not None:
            if not request.takes_over:
                raise self._attached(driver)
            older.append(driver)
        for each in older:
            self.detach(each)
            each.cut(_taken_over(self._key), GoAway(reason=GoAway.REASON_TAKEN_OVER))
        attachment = Attachment(request, self._wall_ns())
        if request.watches:
            self._watchers.append(attachment)
        else:
            self._driver = attachment
        return attachment

    def detach(self, attachment: Attachment) -> None:
        """Forgets a stream. Idempotent."""
        if self._driver is attachment:
            self._driver = None
        elif attachment in self._watchers:
            self._watchers.remove(attachment)

    def note_change(self, turn_id: str) -> None:
        """Tells all that the session changed; see Attachment."""
        for attachment in self._all:
            attachment.note_change(turn_id)

    def note_turn(self, turn: LiveTurn) -> None:
        """Has those who watch tell of a new turn."""
        for watcher in self._watchers:
            watcher.tell_of(turn)

    def send_away(self, go_away: GoAway, end: AntiphonError) -> None:
        """Says to all that they are to end, once they have told of their turns."""
        for attachment in self._all:
            attachment.send_away(go_away, end)

    @property
    def _all(self) -> list[Attachment]:
        return [*([self._driver] if self._driver else []), *self._watchers]

    def _attached(self, driver: Attachment) -> AntiphonError:
        since = datetime.fromtimestamp(driver.since_ns / 1e9, UTC).isoformat(
            timespec="milliseconds"
        )
        return AntiphonError(
            ErrorReason.SESSION_ATTACHED,
            f"Another stream drives {self._key.name} since {since}; end it, take it over with"
            " open.take_over, or watch with open.watch_only.",
            metadata={"session": self._key.name, "since": since},
        )

    def _too_many_watchers(self) -> AntiphonError:
        return AntiphonError(
            ErrorReason.OVERLOADED,
            f"{len(self._watchers)} streams watch {self._key.name} already; the limit is"
            f" {self._max_watchers}. Try again when one has ended.",
            metadata={"session": self._key.name, "limit": str(self._max_watchers)},
            retry_delay_s=1.0,
        )


def _taken_over(key: SessionKey) -> AntiphonError:
    return AntiphonError(
        ErrorReason.TAKEN_OVER,
        f"Another stream took {key.name} over; its turns go on there.",
        metadata={"session": key.name},
    )


def _too_many_turns() -> AntiphonError:
    return AntiphonError(
        ErrorReason.SLOW_CONSUMER,
        f"{MAX_UNTOLD_TURNS} turns began that this stream has not told of, since it isn't read;"
        " open another, with resume for what you have seen.",
        metadata={"limit": str(MAX_UNTOLD_TURNS), "resumable": "true"},
    )
