"""A turn's events: kept whole for readers that come late, joined so that they stay few."""

import asyncio
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Final

from antiphon.v1.session_pb2 import TurnEvent
from antiphon.v1.types_pb2 import Delta

MAX_JOINED_BYTES: Final = 256 << 10
MAX_UNJOINED: Final = 64


class EventLog:
    """The events of one turn, from `accepted` to the terminal one.

    Deltas are joined in place once there are many, so the log is as large as the output and no
    larger; a reader that falls behind gets fewer and larger pieces. Used on one event loop.
    """

    def __init__(self, turn_id: str, epoch: int) -> None:
        self._turn_id = turn_id
        self._epoch = epoch
        self._events: list[TurnEvent] = []
        self._sizes_bytes: list[int] = []
        self._join_at = MAX_UNJOINED
        self._readers: set[EventReader] = set()
        self._ended = False

    @classmethod
    def restore(cls, turn_id: str, epoch: int, events: Sequence[TurnEvent]) -> "EventLog":
        """Returns the log of a turn that has ended, from events that have their numbers."""
        log = cls(turn_id, epoch)
        for event in events:
            event.turn_id = turn_id
            event.epoch = epoch
        log._events = list(events)
        log._sizes_bytes = [event.ByteSize() for event in events]
        log._ended = True
        return log

    @property
    def turn_id(self) -> str:
        """The turn's id."""
        return self._turn_id

    @property
    def last_sequence(self) -> int:
        """The last event's number; 0: none."""
        return self._events[-1].sequence if self._events else 0

    @property
    def ended(self) -> bool:
        """Whether the terminal event is in."""
        return self._ended

    @property
    def events(self) -> Iterable[TurnEvent]:
        """All events, joined as they are now."""
        return self._events

    def append(self, event: TurnEvent) -> None:
        """Adds an event that has its kind set; the log fills in the rest."""
        assert not self._ended, "nothing follows the terminal event"
        sequence = self.last_sequence + 1
        event.turn_id = self._turn_id
        event.epoch = self._epoch
        event.first_sequence = event.sequence = sequence
        self._events.append(event)
        self._sizes_bytes.append(event.ByteSize())
        self._ended = event.WhichOneof("event") in ("completed", "failed")
        if len(self._events) >= self._join_at:
            self._join()
        for reader in self._readers:
            reader.wake.set()

    def open_reader(self, wake: asyncio.Event, *, frame_id: str = "") -> "EventReader":
        """Returns a reader that begins with the first event; close it.

        Args:
            wake: Set when there is news.
            frame_id: What `accepted` tells this reader as the frame that brought the turn.
        """
        reader = EventReader(self, wake, frame_id)
        self._readers.add(reader)
        if self._events:
            wake.set()
        return reader

    def close_reader(self, reader: "EventReader") -> None:
        """Forgets a reader."""
        self._readers.discard(reader)

    def after(self, sequence: int) -> TurnEvent | None:
        """Returns what follows a number: one event, or deltas joined; None: nothing yet.

        The number is 0, or one that a reader of this log stands at.
        """
        index = bisect_right(self._events, sequence, key=lambda event: event.sequence)
        if index == len(self._events):
            return None
        end = index + 1
        size_bytes = self._sizes_bytes[index]
        while end < len(self._events) and _joinable(self._events[index], self._events[end]):
            size_bytes += self._sizes_bytes[end]
            if size_bytes > MAX_JOINED_BYTES:
                break
            end += 1
        return _joined(self._events[index:end])

    def _join(self) -> None:
        """Joins neighbouring deltas, but for places where a reader stands."""
        places = {reader.sequence for reader in self._readers}
        runs: list[list[TurnEvent]] = []
        sizes_bytes: list[int] = []
        for event, size_bytes in zip(self._events, self._sizes_bytes, strict=True):
            last = runs[-1][-1] if runs else None
            joins = last and last.sequence not in places and _joinable(last, event)
            if joins and sizes_bytes[-1] + size_bytes <= MAX_JOINED_BYTES:
                runs[-1].append(event)
                sizes_bytes[-1] += size_bytes
            else:
                runs.append([event])
                sizes_bytes.append(size_bytes)
        self._events = [_joined(run) for run in runs]
        self._sizes_bytes = sizes_bytes
        self._join_at = 2 * len(self._events) + MAX_UNJOINED


class EventReader:
    """One reader's place in a turn's events."""

    def __init__(self, log: EventLog, wake: asyncio.Event, frame_id: str) -> None:
        self.wake = wake
        self.sequence = 0
        """The last number that was read."""
        self._log = log
        self._frame_id = frame_id

    @property
    def turn_id(self) -> str:
        """The turn's id."""
        return self._log.turn_id

    @property
    def turn_ended(self) -> bool:
        """Whether all that is left to read is there."""
        return self._log.ended

    @property
    def finished(self) -> bool:
        """Whether the terminal event has been read."""
        return self._log.ended and self.sequence == self._log.last_sequence

    def read(self) -> TurnEvent | None:
        """Returns the next event, deltas joined as far as they have come; None: not yet."""
        event = self._log.after(self.sequence)
        if event is None:
            return None
        self.sequence = event.sequence
        if event.HasField("accepted") and event.accepted.frame_id != self._frame_id:
            told = TurnEvent()
            told.CopyFrom(event)
            told.accepted.frame_id = self._frame_id
            return told
        return event

    def close(self) -> None:
        """Lets go of the log."""
        self._log.close_reader(self)


def _joinable(left: TurnEvent, right: TurnEvent) -> bool:
    """Whether both are pieces of the same text."""
    return left.HasField("delta") and right.HasField("delta") and _part(left) == _part(right)


def _part(event: TurnEvent) -> tuple[int, int, str]:
    return event.delta.output_index, event.delta.channel, event.delta.call_id


def _joined(run: list[TurnEvent]) -> TurnEvent:
    """Returns one event for neighbouring deltas of one part; a single event as it is."""
    first = run[0]
    if len(run) == 1:
        return first
    delta = Delta(
        output_index=first.delta.output_index,
        channel=first.delta.channel,
        call_id=first.delta.call_id,
        tool_name=first.delta.tool_name,
        text="".join(event.delta.text for event in run),
    )
    for event in run:
        delta.token_ids.extend(event.delta.token_ids)
        delta.logprobs.extend(event.delta.logprobs)
    return TurnEvent(
        turn_id=first.turn_id,
        first_sequence=first.first_sequence,
        sequence=run[-1].sequence,
        epoch=first.epoch,
        delta=delta,
    )
