"""A turn's events and their readers: how far each has come, and whether that is far enough."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from antiphon.v1.session_pb2 import TurnCursor, TurnEvent
from antiphon.v1.types_pb2 import FINISH_REASON_CANCELLED, Delta

from antiphon_server.sessions.numbered_events import NumberedEvents

MAX_BACKLOG_BYTES: Final = 1 << 20


class Valve(Protocol):
    """Where a turn's events come from. Neither call waits."""

    def hold(self) -> None:
        """Makes no more of them until it is released."""

    def release(self) -> None:
        """Takes back one `hold`."""


@dataclass(frozen=True, slots=True)
class Delivered:
    """A place in a turn that its reader has come to."""

    sequence: int
    """The last event's number; 0: none."""
    num_characters: int
    """Of the output, reasoning and tool calls included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderSpec:
    """How a reader reads."""

    frame_id: str | None = None
    """What `accepted` tells as the frame that brought the turn; None: the one that did."""
    cursor: TurnCursor | None = None
    """Where the reader stands; None: nowhere yet."""
    drives: bool = False
    """Whether the turn waits for this reader once the log is full."""
    acknowledges: bool = False
    """Whether it has taken in only what it says it has, instead of all that was read."""


FROM_START: Final = ReaderSpec()


class EventLog(NumberedEvents):
    """The events of one turn, from `accepted` to the terminal one. Used on one event loop.

    1. A reader may begin behind any number, and one that falls behind gets fewer, larger pieces.
    2. What a driving reader has not taken in is bounded: past the bound the turn is held, and
       released once half of it is left. Without such a reader the log grows to the whole output.
    """

    __slots__ = (
        "_drivers",
        "_held",
        "_max_backlog_bytes",
        "_readers",
        "_settled",
        "_valve",
        "on_driven",
        "on_settled",
    )

    def __init__(
        self,
        turn_id: str,
        epoch: int,
        *,
        max_backlog_bytes: int = MAX_BACKLOG_BYTES,
        valve: Valve | None = None,
    ) -> None:
        super().__init__(turn_id, epoch)
        self.on_settled: Callable[[], None] = lambda: None
        """Called whenever all of a turn that has ended has been taken in."""
        self.on_driven: Callable[[], None] = lambda: None
        """Called whenever a driving reader comes."""
        self._max_backlog_bytes = max_backlog_bytes
        self._valve = valve
        self._held = False
        self._readers: list[EventReader] = []
        self._drivers: list[EventReader] = []
        self._settled = 0

    @classmethod
    def restore(cls, turn_id: str, epoch: int, events: Sequence[TurnEvent]) -> "EventLog":
        """Returns the log of a turn that has ended, from events that have their numbers.

        Its output was told in other pieces as it came, so a reader inside of it starts over. So
        does one at its end where the turn was stopped, since more may have been told than is kept;
        and where it has calls, since those came between the pieces.
        """
        log = cls(turn_id, epoch)
        kinds = [event.WhichOneof("event") for event in events]
        is_stopped = events[-1].completed.finish_reason == FINISH_REASON_CANCELLED
        knows_end = not (is_stopped or "tool_call" in kinds)
        for index, event in enumerate(events):
            if kinds[index] in ("delta", "tool_call"):
                ends_exactly = knows_end and "delta" not in kinds[index + 1 :]
            else:
                ends_exactly = knows_end or event.first_sequence == event.sequence
            log.add_numbered(event, ends_exactly=ends_exactly)
        return log

    @property
    def delivered(self) -> Delivered:
        """The place up to which a driving reader was sent, or has acknowledged, what there is."""
        self._note_settled()
        return Delivered(self._settled, self.characters_at(self._settled))

    @property
    def driven(self) -> bool:
        """Whether a driving reader is there."""
        return bool(self._drivers)

    @property
    def settled(self) -> bool:
        """Whether it has ended, and a driving reader has taken all of it in."""
        self._note_settled()
        return self.ended and self._settled == self.last_sequence

    def append(self, event: TurnEvent) -> None:
        """Takes over an event that has its kind set; the log fills in the rest."""
        if event.HasField("delta"):
            self.append_delta(event.delta)
            return
        self.add(event)
        if self.ended:
            self._valve = None  # Logs are kept longer than what they are of.
        self._announce()

    def append_delta(self, delta: Delta) -> None:
        """Takes over a piece of output."""
        self.add_delta(delta)
        self._announce()

    def append_text(self, text: str) -> None:
        """Takes over a piece of output that has nothing but text, of the answer."""
        self.add_text(text)
        self._announce()

    def open_reader(
        self,
        wake: asyncio.Event,
        spec: ReaderSpec = FROM_START,
        *,
        take_news: "TakeNews | None" = None,
    ) -> "EventReader":
        """Returns a reader; close it.

        A cursor that can't be served gets `reset` and the turn from its start.

        Args:
            wake: Set when there is news.
            spec: Where it stands, and how it reads.
            take_news: Asked first, whenever news come; `wake` is set where it says no.
        """
        cursor = spec.cursor
        resets = cursor is not None and not self._can_serve(cursor)
        sequence = cursor.sequence if cursor is not None and not resets else 0
        reader = EventReader(self, wake, spec=spec, sequence=sequence, resets=resets)
        reader.take_news = take_news
        self._readers.append(reader)
        if spec.drives:
            self._drivers.append(reader)
            self.on_driven()
        if reader.has_news:
            wake.set()
        self.weigh()
        return reader

    def close_reader(self, reader: "EventReader") -> None:
        """Forgets a reader."""
        self._note_settled()
        if reader in self._readers:
            self._readers.remove(reader)
        if reader in self._drivers:
            self._drivers.remove(reader)
        self.weigh()

    def weigh(self) -> None:
        """Looks how far driving readers have come, and holds or releases the turn by it."""
        if self.ended and self.settled:
            self.on_settled()
        if self._held or self.size_bytes > self._max_backlog_bytes:
            self._hold_or_release()

    @property
    def is_weighed(self) -> bool:
        """Whether anything can come of `weigh`."""
        return self.ended or self._held or self.size_bytes > self._max_backlog_bytes

    def _note_settled(self) -> None:
        """Looks how far driving readers have come; behind the last of them, that stays."""
        if self._drivers:
            self._settled = max(reader.settled for reader in self._drivers)

    def _hold_or_release(self) -> None:
        self._note_settled()
        backlog_bytes = 0
        if self._drivers and self._settled < self.last_sequence:
            backlog_bytes = self.size_bytes - self.bytes_through(self._settled)
        if not self._held and backlog_bytes > self._max_backlog_bytes:
            self._held = True
            if self._valve is not None:
                self._valve.hold()
        elif self._held and backlog_bytes <= self._max_backlog_bytes // 2:
            self._held = False
            if self._valve is not None:
                self._valve.release()

    def _can_serve(self, cursor: TurnCursor) -> bool:
        """Whether what follows a cursor is known exactly."""
        is_of_epoch = cursor.epoch == self.epoch or not cursor.sequence
        return is_of_epoch and self.knows_place(cursor.sequence)

    def _announce(self) -> None:
        for reader in self._readers:
            if reader.take_news is None or not reader.take_news(reader):
                reader.wake.set()
        if self.size_bytes > self._max_backlog_bytes:
            self.weigh()


class EventReader:
    """One reader's place in a turn's events."""

    __slots__ = (
        "_acknowledged",
        "_acknowledges",
        "_frame_id",
        "_resets",
        "drives",
        "log",
        "sequence",
        "take_news",
        "wake",
    )

    def __init__(
        self,
        log: EventLog,
        wake: asyncio.Event,
        *,
        spec: ReaderSpec,
        sequence: int,
        resets: bool,
    ) -> None:
        self.wake: Final = wake
        self.log: Final = log
        self.drives: Final = spec.drives
        self.sequence = sequence
        """The last number that was read."""
        self.take_news: TakeNews | None = None
        """Takes news as they come; see EventLog.open_reader."""
        self._acknowledged = sequence
        self._acknowledges = spec.acknowledges
        self._frame_id = spec.frame_id
        self._resets = resets

    @property
    def turn_id(self) -> str:
        """The turn's id."""
        return self.log.turn_id

    @property
    def turn_ended(self) -> bool:
        """Whether all that is left to read is there."""
        return self.log.ended

    @property
    def has_news(self) -> bool:
        """Whether `read` returns something."""
        return self._resets or self.sequence < self.log.last_sequence

    @property
    def finished(self) -> bool:
        """Whether the terminal event has been read."""
        return self.log.ended and not self.has_news

    @property
    def settled(self) -> int:
        """The last number that was taken in."""
        return self._acknowledged if self._acknowledges else self.sequence

    def read(self) -> TurnEvent | None:
        """Returns the next event, deltas joined as far as they have come; None: not yet."""
        event = TurnEvent()
        return event if self.read_into(event) else None

    def read_into(self, event: TurnEvent) -> bool:
        """`read` into an empty event; false: not yet."""
        log = self.log
        if self._resets:
            self._resets = False
            event.turn_id = log.turn_id
            event.epoch = log.epoch
            event.reset.SetInParent()
            return True
        if not log.tell_after(self.sequence, event):
            return False
        self.sequence = event.sequence
        if self.drives:
            log.weigh()
        # `accepted` is the first event, and no other is.
        if self.sequence == 1 and self._frame_id is not None:
            event.accepted.frame_id = self._frame_id
        return True

    def read_delta_into(self, event: TurnEvent) -> bool:
        """`read_into`, where what comes next is a piece of output; false: it is not, or not yet."""
        log = self.log
        if self._resets or not log.tell_delta_after(self.sequence, event):
            return False
        self.sequence = event.sequence
        if self.drives and log.is_weighed:
            log.weigh()
        return True

    def acknowledge(self, sequence: int) -> None:
        """Says that all up to a number, which was read, was taken in; never goes back."""
        assert sequence <= self.sequence
        self._acknowledged = max(self._acknowledged, sequence)
        self.log.weigh()

    def stop_acknowledging(self) -> None:
        """Counts all that is read as taken in from now on."""
        self._acknowledges = False
        self.log.weigh()

    def close(self) -> None:
        """Lets go of the log."""
        self.log.close_reader(self)


TakeNews = Callable[[EventReader], bool]
