"""A turn's events by number: deltas lie end to end, and are joined as far as a reader asks."""

from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass
from typing import Final

from antiphon.v1.session_pb2 import TurnEvent
from antiphon.v1.types_pb2 import (
    OUTPUT_CHANNEL_CONTENT,
    OUTPUT_CHANNEL_REASONING,
    Delta,
    Output,
    OutputChannel,
)

from antiphon_server.sessions.delta_run import DeltaRun

MAX_JOINED_BYTES: Final = 256 << 10


@dataclass(frozen=True, slots=True)
class _Single:
    """An event that stands for itself, or for a range that can't be taken apart any more."""

    event: TurnEvent
    num_bytes: int
    ends_exactly: bool
    """Whether what follows its last number is known to follow it for every reader."""

    @property
    def first_sequence(self) -> int:
        return self.event.first_sequence

    @property
    def last_sequence(self) -> int:
        return self.event.sequence

    def size_bytes(self, num_numbers: int) -> int:
        return self.num_bytes if num_numbers else 0


class NumberedEvents:
    """What a turn has told, from its first event on; nothing is ever taken out.

    Deltas are kept as text with the places where each ends, so what follows any number is known.
    """

    __slots__ = (
        "_bytes_before",
        "_entries",
        "_firsts",
        "_latest",
        "_run",
        "ended",
        "epoch",
        "last_sequence",
        "size_bytes",
        "turn_id",
    )

    def __init__(self, turn_id: str, epoch: int) -> None:
        self.turn_id: Final = turn_id
        self.epoch: Final = epoch
        self.last_sequence = 0
        """The last event's number; 0: none."""
        self.size_bytes = 0
        """What all of them take."""
        self.ended = False
        """Whether the terminal event is in."""
        self._entries: list[_Single | DeltaRun] = []
        self._firsts: list[int] = []  # The entries' first numbers.
        self._bytes_before: list[int] = []  # What all entries before each take.
        self._latest: Delta | str | None = None  # The last event, where it is a piece of output.
        self._run: DeltaRun | None = None  # The last entry, where it is one.

    def add_numbered(self, event: TurnEvent, *, ends_exactly: bool = True) -> None:
        """Takes over an event that has its numbers, which may stand for a range.

        Args:
            event: It.
            ends_exactly: Whether its last number is a place that `knows_place`.
        """
        assert not self.ended, "nothing follows the terminal event"
        event.turn_id = self.turn_id
        event.epoch = self.epoch
        single = _Single(event, event.ByteSize(), ends_exactly)
        self._add(single)
        self._run = None
        self.size_bytes += single.num_bytes
        self.last_sequence = event.sequence
        self.ended = event.HasField("completed") or event.HasField("failed")
        self._latest = None

    def add(self, event: TurnEvent) -> None:
        """Takes over an event that is no delta, as the next."""
        event.first_sequence = event.sequence = self.last_sequence + 1
        self.add_numbered(event)

    def add_delta(self, delta: Delta) -> None:
        """Takes over a piece of output, as the next event."""
        assert not self.ended, "nothing follows the terminal event"
        self.last_sequence += 1
        run = self._run
        if run is None or not run.continues_with(delta):
            run = self._run = DeltaRun(self.last_sequence, delta)
            self._add(run)
        self.size_bytes += run.append(delta)
        self._latest = delta

    def add_text(self, text: str) -> None:
        """`add_delta` of a delta that has nothing but text of the first output's answer."""
        assert not self.ended, "nothing follows the terminal event"
        self.last_sequence += 1
        run = self._run
        if run is None or not run.is_answer:
            run = self._run = DeltaRun(self.last_sequence, Delta(channel=OUTPUT_CHANNEL_CONTENT))
            self._add(run)
        self.size_bytes += run.append_text(text)
        self._latest = text

    def knows_place(self, sequence: int) -> bool:
        """Whether what follows a number is known exactly."""
        if not sequence:
            return True
        if sequence > self.last_sequence:
            return False
        entry = self._entries[bisect_right(self._firsts, sequence) - 1]
        if isinstance(entry, DeltaRun):
            return True
        return entry.last_sequence == sequence and entry.ends_exactly

    def tell_after(self, sequence: int, told: TurnEvent) -> bool:
        """Writes into an empty event what follows a number: one event, or deltas joined.

        Returns:
            False: nothing follows it yet.
        """
        if self.tell_delta_after(sequence, told):
            return True
        if sequence == self.last_sequence:
            return False
        entry = self._entries[bisect_right(self._firsts, sequence + 1) - 1]
        assert isinstance(entry, _Single)
        told.CopyFrom(entry.event)
        return True

    def tell_delta_after(self, sequence: int, told: TurnEvent) -> bool:
        """`tell_after` of deltas.

        Returns:
            False: what follows is something else, or nothing follows yet; nothing was written.
        """
        last = self.last_sequence
        if sequence == last:
            return False
        latest = self._latest
        if sequence < last - 1 or latest is None:
            entry = self._entries[bisect_right(self._firsts, sequence + 1) - 1]
            if isinstance(entry, _Single):
                return False
            latest, last = entry.join(sequence, MAX_JOINED_BYTES)
        # Field by field: there is one for every token, and whole messages would be copied.
        told.turn_id = self.turn_id
        told.first_sequence = sequence + 1
        told.sequence = last
        told.epoch = self.epoch
        delta = told.delta
        if isinstance(latest, str):
            delta.channel = OUTPUT_CHANNEL_CONTENT
            delta.text = latest
        else:
            delta.CopyFrom(latest)
        return True

    def characters_at(self, sequence: int) -> int:
        """Returns how many characters of the output there are up to and with a number."""
        return len(self.text_through(sequence))

    def text_through(self, sequence: int) -> str:
        """Returns the output's text up to and with a number, of all its parts as they came."""
        texts: list[str] = []
        for entry in self._entries:
            if entry.first_sequence > sequence:
                break
            if isinstance(entry, DeltaRun):
                texts.append(entry.text_through(min(sequence, entry.last_sequence)))
        return "".join(texts)

    def characters_through(self, sequence: int) -> list[int]:
        """Returns `characters_at` for all numbers from 0 to that one. Work for another thread."""
        counts = [0]
        for entry in self._entries:
            if entry.first_sequence > sequence:
                break
            last = min(sequence, entry.last_sequence)
            if isinstance(entry, DeltaRun):
                for size in entry.sizes_through(last):
                    counts.append(counts[-1] + size)
            else:
                counts += [counts[-1]] * (last + 1 - entry.first_sequence)
        return counts

    def last_before_call(self, call_index: int) -> int:
        """Returns the last number before the first piece of a call, as they came; or the last."""
        call_ids: set[str] = set()
        for entry in self._entries:
            if isinstance(entry, DeltaRun) and entry.call_id:
                call_ids.add(entry.call_id)
                if len(call_ids) > call_index:
                    return entry.first_sequence - 1
        return self.last_sequence

    def bytes_through(self, sequence: int) -> int:
        """Returns what the events up to and with a number take."""
        if not sequence:
            return 0
        index = bisect_right(self._firsts, sequence) - 1
        entry = self._entries[index]
        num_numbers = sequence + 1 - entry.first_sequence
        return self._bytes_before[index] + entry.size_bytes(num_numbers)

    def output(self) -> Output:
        """Returns what the events so far amount to, without why it ended."""
        output = Output()
        texts: defaultdict[OutputChannel.ValueType, list[str]] = defaultdict(list)
        for entry in self._entries:
            if isinstance(entry, DeltaRun):
                delta, _ = entry.join(entry.first_sequence - 1, self.size_bytes)
                texts[delta.channel].append(delta.text)
                output.token_ids.extend(delta.token_ids)
                output.logprobs.extend(delta.logprobs)
            elif entry.event.HasField("tool_call"):
                output.tool_calls.append(entry.event.tool_call)
        output.text = "".join(texts[OUTPUT_CHANNEL_CONTENT])
        output.reasoning = "".join(texts[OUTPUT_CHANNEL_REASONING])
        return output

    def _add(self, entry: _Single | DeltaRun) -> None:
        self._bytes_before.append(self.size_bytes)
        self._firsts.append(entry.first_sequence)
        self._entries.append(entry)
