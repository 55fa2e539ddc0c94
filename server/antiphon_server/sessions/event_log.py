"""A turn's events: kept whole for readers that come late, joined so that they stay few."""

import asyncio
from bisect import bisect_right
from collections.abc import Iterable
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
        self._join_at = MAX_UNJOINED
        self._readers: set[EventReader] = set()
        self._ended = False

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
        """Returns what follows a number that lies between two events: one event, or deltas joined."""
        index = bisect_right(self._events, sequence, key=lambda event: event.sequence)
        if index == len(self._events):
            return None
        run = self._events[index : index + 1]
        size_bytes = run[0].ByteSize()
        for event in self._events[index + 1 :]:
            size_bytes += event.ByteSize()
            if not _joinable(run[0], event) or size_bytes > MAX_JOINED_BYTES:
                break
            run.append(event)
        return run[0] if len(run) == 1 else _joined(run)

    def _join(self) -> None:
        """Joins neighbouring deltas, but for places where a reader stands."""
        places = {reader.sequence for reader in self._readers}
        runs: list[list[TurnEvent]] = []
        size_bytes = 0
        for event in self._events:
            event_bytes = event.ByteSize()
            last = runs[-1][-1] if runs else None
            fits = size_bytes + event_bytes <= MAX_JOINED_BYTES
            if last and fits and last.sequence not in places and _joinable(last, event):
                runs[-1].append(event)
                size_bytes += event_bytes
            else:
                runs.append([event])
                size_bytes = event_bytes
        self._events = [run[0] if len(run) == 1 else _joined(run) for run in runs]
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
    """Returns one event for several neighbouring deltas of one part."""
    first = run[0]
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
