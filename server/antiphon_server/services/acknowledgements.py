"""What a stream's caller says it has taken in, and how much it may be behind."""

from collections import OrderedDict
from typing import Final

from antiphon.v1.session_pb2 import TurnCursor, TurnEvent

from antiphon_engine.api.errors import FieldViolation, InvalidRequest
from antiphon_server.sessions.event_log import EventReader

MAX_UNACKED_EVENTS: Final = 4096
"""As many as a stream may be behind, however many its caller would allow."""

_MAX_SETTLED: Final = 64
"""Turns that have been taken in whole and may still be acknowledged again."""


class _Told:
    """A turn that the stream tells of."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.sent = 0
        """The highest number that was sent, or that the caller had when it came."""
        self.acknowledged = 0
        self.readers: list[EventReader] = []
        self.unacked: list[int] = []
        """The last numbers of the events that are not acknowledged."""

    def makes_room(self, sequence: int) -> bool:
        """Whether something up to a number is unacknowledged, also of what was told once more."""
        return any(each <= sequence for each in self.unacked)

    @property
    def is_over(self) -> bool:
        return not self.unacked and all(reader.finished for reader in self.readers)


class Acknowledgements:
    """The events of one stream that were sent and are not acknowledged yet."""

    __slots__ = (
        "_is_lifted",
        "_most",
        "_num_unacked",
        "_settled",
        "_told",
    )

    def __init__(self, most: int) -> None:
        """Sets how many there may be; 0: the caller never acknowledges, nothing is counted."""
        self._most = min(most, MAX_UNACKED_EVENTS)
        self._is_lifted = False
        self._told: dict[str, _Told] = {}
        self._settled: OrderedDict[str, tuple[int, int]] = OrderedDict()  # Epoch, last number.
        self._num_unacked = 0

    @property
    def counts(self) -> bool:
        """Whether the caller acknowledges."""
        return self._most > 0 and not self._is_lifted

    @property
    def full(self) -> bool:
        """Whether no event may be sent now."""
        return self._num_unacked >= self._most > 0 and not self._is_lifted

    @property
    def place(self) -> TurnCursor | None:
        """Where the caller stands in the first turn that it is behind with; None: in none."""
        for turn_id, told in self._told.items():
            if told.unacked:
                return TurnCursor(turn_id=turn_id, epoch=told.epoch, sequence=told.acknowledged)
        return None

    def follow(self, reader: EventReader) -> None:
        """Counts what is sent of a reader from now on."""
        if not self.counts:
            return
        told = self._told.setdefault(reader.turn_id, _Told(reader.log.epoch))
        told.readers.append(reader)
        told.sent = max(told.sent, reader.sequence)
        told.acknowledged = max(told.acknowledged, reader.settled)
        self._settle(reader.turn_id, told)

    def note_sent(self, event: TurnEvent) -> None:
        """Counts an event that goes out."""
        # `reset` has no number, so nobody could acknowledge it.
        if self._most > 0 and self.counts and event.sequence:
            told = self._told[event.turn_id]
            told.sent = max(told.sent, event.sequence)
            told.unacked.append(event.sequence)
            self._num_unacked += 1

    def acknowledge(self, cursor: TurnCursor) -> bool:
        """Takes in what the caller says; a place that was acknowledged before changes nothing.

        Returns:
            Whether the caller has come further, or has taken in once more what was told again.

        Raises:
            InvalidRequest: it can't be right.
        """
        if not self._most:
            raise _invalid("ack", "needs open.max_unacked_events above 0")
        told = self._told.get(cursor.turn_id)
        settled = self._settled.get(cursor.turn_id)
        if told is not None:
            epoch, sent = told.epoch, told.sent
        elif settled is not None:
            epoch, sent = settled
        else:
            raise _invalid("ack.turn_id", f"is no turn of this stream: {cursor.turn_id[:64]!r}")
        if cursor.epoch != epoch:
            raise _invalid("ack.epoch", f"must be {epoch}, the turn's; is {cursor.epoch}")
        if cursor.sequence > sent:
            raise _invalid(
                "ack.sequence", f"must be at most {sent}, the last sent; is {cursor.sequence}"
            )
        if told is None:
            return False
        if cursor.sequence <= told.acknowledged and not told.makes_room(cursor.sequence):
            return False
        self._take_in(cursor, told)
        return True

    def lift(self) -> None:
        """Counts no more: the caller can't acknowledge any longer."""
        self._is_lifted = True
        self._num_unacked = 0
        told, self._told = self._told, {}
        for turn in told.values():
            for reader in turn.readers:
                reader.stop_acknowledging()
                if reader.finished:
                    reader.close()

    def close(self) -> None:
        """Lets go of all readers."""
        for told in self._told.values():
            for reader in told.readers:
                reader.close()
        self._told = {}

    def _take_in(self, cursor: TurnCursor, told: _Told) -> None:
        told.acknowledged = max(told.acknowledged, cursor.sequence)
        left = [sequence for sequence in told.unacked if sequence > cursor.sequence]
        self._num_unacked -= len(told.unacked) - len(left)
        told.unacked = left
        for reader in told.readers:
            reader.acknowledge(min(cursor.sequence, reader.sequence))
        self._settle(cursor.turn_id, told)

    def _settle(self, turn_id: str, told: _Told) -> None:
        """Lets go of a turn that has been told and taken in whole."""
        if not told.is_over:
            return
        for reader in told.readers:
            reader.close()
        del self._told[turn_id]
        self._settled[turn_id] = (told.epoch, told.sent)
        if len(self._settled) > _MAX_SETTLED:
            self._settled.popitem(last=False)


def _invalid(field: str, description: str) -> InvalidRequest:
    return InvalidRequest(FieldViolation(field, description))
