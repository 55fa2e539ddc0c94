"""A turn's events: kept whole for readers that come late, joined so that they stay few."""

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from antiphon.v1.session_pb2 import TurnCursor, TurnEvent, TurnReset
from antiphon.v1.types_pb2 import OUTPUT_CHANNEL_REASONING, Delta, Output

from antiphon_server.sessions.delta_run import DeltaRun

MAX_JOINED_BYTES: Final = 256 << 10
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
    """Of the answer, without reasoning and tool calls."""


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


@dataclass(frozen=True, slots=True)
class _Single:
    """An event that stands for itself, or for a range that can't be taken apart any more."""

    event: TurnEvent
    num_bytes: int

    @property
    def first_sequence(self) -> int:
        return self.event.first_sequence

    @property
    def last_sequence(self) -> int:
        return self.event.sequence

    def size_bytes(self, num_numbers: int) -> int:
        return self.num_bytes if num_numbers else 0


class EventLog:
    """The events of one turn, from `accepted` to the terminal one. Used on one event loop.

    1. Deltas are kept as text with the places where each ends, so a reader may begin behind any
       number, and one that falls behind gets fewer and larger pieces.
    2. What a driving reader has not taken in is bounded: past the bound the turn is held, and
       released once half of it is left. Without such a reader the log grows to the whole output.
    """

    def __init__(
        self,
        turn_id: str,
        epoch: int,
        *,
        max_backlog_bytes: int = MAX_BACKLOG_BYTES,
        valve: Valve | None = None,
    ) -> None:
        self.turn_id: Final = turn_id
        self.epoch: Final = epoch
        self.last_sequence = 0
        """The last event's number; 0: none."""
        self.ended = False
        """Whether the terminal event is in."""
        self.on_settled: Callable[[], None] = lambda: None
        """Called whenever all of a turn that has ended has been taken in."""
        self.on_driven: Callable[[], None] = lambda: None
        """Called whenever a driving reader comes."""
        self._max_backlog_bytes = max_backlog_bytes
        self._valve = valve
        self._held = False
        self._entries: list[_Single | DeltaRun] = []
        self._firsts: list[int] = []  # The entries' first numbers.
        self._bytes_before: list[int] = []  # What all entries before each take.
        self._size_bytes = 0
        self._latest: TurnEvent | Delta | None = None
        self._readers: set[EventReader] = set()
        self._drivers: list[EventReader] = []
        self._settled = 0

    @classmethod
    def restore(cls, turn_id: str, epoch: int, events: Sequence[TurnEvent]) -> "EventLog":
        """Returns the log of a turn that has ended, from events that have their numbers."""
        log = cls(turn_id, epoch)
        for event in events:
            event.turn_id = turn_id
            event.epoch = epoch
            log._add(_Single(event, event.ByteSize()))
            log.last_sequence = event.sequence
        log.ended = True
        return log

    @property
    def size_bytes(self) -> int:
        """What its events take."""
        return self._size_bytes

    @property
    def delivered(self) -> Delivered:
        """The place up to which a driving reader was sent, or has acknowledged, what there is."""
        return Delivered(self._settled, self.characters_at(self._settled))

    @property
    def driven(self) -> bool:
        """Whether a driving reader is there."""
        return bool(self._drivers)

    @property
    def settled(self) -> bool:
        """Whether it has ended, and a driving reader has taken all of it in."""
        return self.ended and self._settled == self.last_sequence

    def append(self, event: TurnEvent) -> None:
        """Takes over an event that has its kind set; the log fills in the rest."""
        kind = event.WhichOneof("event")
        if kind == "delta":
            self.append_delta(event.delta)
            return
        assert not self.ended, "nothing follows the terminal event"
        self.last_sequence += 1
        event.turn_id = self.turn_id
        event.epoch = self.epoch
        event.first_sequence = event.sequence = self.last_sequence
        self._add(_Single(event, event.ByteSize()))
        self.ended = kind in ("completed", "failed")
        if self.ended:
            self._valve = None  # Logs are kept longer than what they are of.
        self._announce(event)

    def append_delta(self, delta: Delta) -> None:
        """Takes over a piece of output."""
        assert not self.ended, "nothing follows the terminal event"
        self.last_sequence += 1
        run = self._entries[-1] if self._entries else None
        if not isinstance(run, DeltaRun) or not run.continues_with(delta):
            run = DeltaRun(self.last_sequence, delta)
            self._add(run)
        self._size_bytes += run.append(delta)
        self._announce(delta)

    def open_reader(self, wake: asyncio.Event, spec: ReaderSpec = FROM_START) -> "EventReader":
        """Returns a reader; close it.

        A cursor that can't be served gets `reset` and the turn from its start.

        Args:
            wake: Set when there is news.
            spec: Where it stands, and how it reads.
        """
        cursor = spec.cursor
        resets = cursor is not None and not self._can_serve(cursor)
        sequence = cursor.sequence if cursor is not None and not resets else 0
        reader = EventReader(self, wake, spec=spec, sequence=sequence, resets=resets)
        self._readers.add(reader)
        if spec.drives:
            self._drivers.append(reader)
            self.on_driven()
        if reader.has_news:
            wake.set()
        self.weigh()
        return reader

    def close_reader(self, reader: "EventReader") -> None:
        """Forgets a reader."""
        self._readers.discard(reader)
        if reader in self._drivers:
            self._drivers.remove(reader)
        self.weigh()

    def weigh(self) -> None:
        """Looks how far driving readers have come, and holds or releases the turn by it."""
        if self._drivers:
            self._settled = max(reader.settled for reader in self._drivers)
        if self.ended and self.settled:
            self.on_settled()
        if not self._may_be_full:
            return
        backlog_bytes = 0
        if self._drivers and self._settled < self.last_sequence:
            backlog_bytes = self._size_bytes - self._bytes_through(self._settled)
        if not self._held and backlog_bytes > self._max_backlog_bytes:
            self._held = True
            if self._valve is not None:
                self._valve.hold()
        elif self._held and backlog_bytes <= self._max_backlog_bytes // 2:
            self._held = False
            if self._valve is not None:
                self._valve.release()

    def after(self, sequence: int) -> TurnEvent | None:
        """Returns what follows a number: one event, or deltas joined; None: nothing yet."""
        last = self.last_sequence
        if sequence == last:
            return None
        if self._latest is not None and sequence == last - 1:
            latest = self._latest
            return latest if isinstance(latest, TurnEvent) else self._event_of(latest, last, last)
        entry = self._entries[bisect_right(self._firsts, sequence + 1) - 1]
        if isinstance(entry, _Single):
            return entry.event
        delta, last = entry.join(sequence, MAX_JOINED_BYTES)
        return self._event_of(delta, sequence + 1, last)

    def characters_at(self, sequence: int) -> int:
        """Returns how many characters of the answer there are up to and with a number."""
        num_characters = 0
        for entry in self._entries:
            if entry.first_sequence > sequence:
                break
            if isinstance(entry, DeltaRun) and entry.is_content:
                num_characters += len(entry.text_through(min(sequence, entry.last_sequence)))
        return num_characters

    def characters_through(self, sequence: int) -> list[int]:
        """Returns `characters_at` for all numbers from 0 to that one. Work for another thread."""
        counts = [0]
        for entry in self._entries:
            if entry.first_sequence > sequence:
                break
            last = min(sequence, entry.last_sequence)
            if isinstance(entry, DeltaRun) and entry.is_content:
                for size in entry.sizes_through(last):
                    counts.append(counts[-1] + size)
            else:
                counts += [counts[-1]] * (last + 1 - entry.first_sequence)
        return counts

    def output(self) -> Output:
        """Returns what the events so far amount to, without why it ended."""
        output = Output()
        texts: dict[bool, list[str]] = {False: [], True: []}
        for entry in self._entries:
            if isinstance(entry, DeltaRun):
                delta, _ = entry.join(entry.first_sequence - 1, self.size_bytes)
                texts[delta.channel == OUTPUT_CHANNEL_REASONING].append(delta.text)
                output.token_ids.extend(delta.token_ids)
                output.logprobs.extend(delta.logprobs)
            elif entry.event.HasField("tool_call"):
                output.tool_calls.append(entry.event.tool_call)
        output.text = "".join(texts[False])
        output.reasoning = "".join(texts[True])
        return output

    @property
    def _may_be_full(self) -> bool:
        """Whether it holds so much that it matters how much of it was taken in."""
        return self._held or self._size_bytes > self._max_backlog_bytes

    def _event_of(self, delta: Delta, first: int, last: int) -> TurnEvent:
        return TurnEvent(
            turn_id=self.turn_id,
            first_sequence=first,
            sequence=last,
            epoch=self.epoch,
            delta=delta,
        )

    def _announce(self, latest: TurnEvent | Delta) -> None:
        """Wakes the readers; most of them read what came last as it is."""
        self._latest = latest
        for reader in self._readers:
            reader.wake.set()
        if self._may_be_full:
            self.weigh()

    def _add(self, entry: _Single | DeltaRun) -> None:
        self._bytes_before.append(self._size_bytes)
        if isinstance(entry, _Single):
            self._size_bytes += entry.num_bytes
        self._firsts.append(entry.first_sequence)
        self._entries.append(entry)

    def _bytes_through(self, sequence: int) -> int:
        """Returns what the events up to and with a number take."""
        if not sequence:
            return 0
        index = bisect_right(self._firsts, sequence) - 1
        entry = self._entries[index]
        num_numbers = sequence + 1 - entry.first_sequence
        return self._bytes_before[index] + entry.size_bytes(num_numbers)

    def _can_serve(self, cursor: TurnCursor) -> bool:
        """Whether what follows a cursor is known exactly."""
        if not cursor.sequence:
            return True
        if cursor.epoch != self.epoch or cursor.sequence > self.last_sequence:
            return False
        entry = self._entries[bisect_right(self._firsts, cursor.sequence) - 1]
        return isinstance(entry, DeltaRun) or entry.last_sequence == cursor.sequence


class EventReader:
    """One reader's place in a turn's events."""

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
        if self._resets:
            self._resets = False
            return TurnEvent(turn_id=self.turn_id, epoch=self.log.epoch, reset=TurnReset())
        event = self.log.after(self.sequence)
        if event is None:
            return None
        self.sequence = event.sequence
        if self.drives:
            self.log.weigh()
        # `accepted` is the first event, and no other is.
        return event if self.sequence > 1 or self._frame_id is None else self._renamed(event)

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

    def _renamed(self, accepted: TurnEvent) -> TurnEvent:
        told = TurnEvent()
        told.CopyFrom(accepted)
        told.accepted.frame_id = self._frame_id or ""
        return told
