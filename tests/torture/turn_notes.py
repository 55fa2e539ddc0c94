"""What a client knows of one turn: what it asked, what it was told, and whether that fits."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from antiphon.v1.session_pb2 import AppendItems, StartTurn, Turn, TurnCursor, TurnEvent
from antiphon.v1.types_pb2 import FINISH_REASON_CANCELLED, OUTPUT_CHANNEL_TOOL_CALL, ToolCall

from torture.tally import Kind, ViolationError

_MAX_VIEWS = 8


@dataclass(slots=True)
class View:
    """One telling of a turn, from a cursor on."""

    epoch: int = 0
    next_sequence: int = 1
    text: str = ""
    """Of the answer."""
    calls: list[ToolCall] = field(default_factory=list)
    marks: list[tuple[int, int]] = field(default_factory=lambda: [(0, 0)])
    """A sequence number that was told, and how long the text was behind it."""
    end: TurnEvent | None = None

    def take(self, event: TurnEvent) -> None:
        """Takes an event that follows."""
        self.epoch = event.epoch
        self.next_sequence = event.sequence + 1
        if event.delta.channel != OUTPUT_CHANNEL_TOOL_CALL:
            self.text += event.delta.text
        if event.HasField("tool_call"):
            self.calls.append(event.tool_call)
        self.marks.append((event.sequence, len(self.text)))
        if event.WhichOneof("event") in ("completed", "failed"):
            self.end = event

    def expects(self, event: TurnEvent) -> bool:
        """Whether an event is the next one."""
        fits = event.first_sequence == self.next_sequence and self.end is None
        return fits and (self.next_sequence == 1 or event.epoch == self.epoch)

    def bounds_behind(self, sequence: int) -> tuple[int, int]:
        """Returns within what lengths the text behind a sequence number lies."""
        least = max(size for number, size in self.marks if number <= sequence)
        most = min((size for number, size in self.marks if number >= sequence), default=least)
        return least, max(least, most)


class TurnNotes:
    """A turn that a client asked for. Several tellings of it must agree.

    Tokens follow from all that is before them, so whatever is told of a turn, in whichever epoch,
    is the beginning of one text.
    """

    def __init__(self, turn_id: str, frame: StartTurn | AppendItems) -> None:
        self.turn_id = turn_id
        self.frame = frame
        self.accepted = False
        self.accepted_at_kill = 0
        self.stopped = False
        """Whether we asked to stop it: it may then have no output, or less."""
        self.may_be_stale = False
        """Whether we named a head that was not the head."""
        self.longest = ""
        """The most that was seen of its text."""
        self.calls: list[ToolCall] = []
        """The most that were seen of its calls."""
        self.end: TurnEvent | None = None
        self.life = 0
        """The front end that told the last event."""
        self._views: list[View] = [View()]

    @property
    def generates(self) -> bool:
        """Whether it asks for output."""
        return isinstance(self.frame, StartTurn)

    @property
    def asked_text(self) -> str:
        """What its last item says; results of calls stand before it."""
        return self.frame.items[-1].message.text if self.frame.items else ""

    @property
    def completed(self) -> bool:
        """Whether it is in the history."""
        return self.end is not None and self.end.HasField("completed")

    @property
    def keeps_calls(self) -> bool:
        """Whether all of its calls are in the history, where they wait for results."""
        if self.end is None or not self.completed:
            return False
        return self.end.completed.finish_reason != FINISH_REASON_CANCELLED

    @property
    def kept_bounds(self) -> tuple[int, int]:
        """Within what lengths the text that was kept lies."""
        assert self.end is not None
        view = next(view for view in self._views if view.end is not None)
        return view.bounds_behind(self.end.completed.kept_sequence)

    @property
    def kept_text(self) -> str:
        """The text that was kept, where the bounds say it exactly, or the most of it."""
        return self.longest[: self.kept_bounds[1]]

    def cursor(self) -> TurnCursor:
        """Returns where the best telling stands."""
        view = self._best()
        sequence = view.next_sequence - 1
        return TurnCursor(
            turn_id=self.turn_id, epoch=view.epoch if sequence else 0, sequence=sequence
        )

    def go_on(self) -> None:
        """Expects a telling from the cursor on."""
        self._views = [self._best()]

    def begin_again(self) -> None:
        """Expects a telling from the start."""
        self._views = [View()]

    def stand_at(self, turn: Turn) -> None:
        """Expects what follows a turn as it was read."""
        text = turn.output.text
        view = View(epoch=turn.epoch, next_sequence=turn.last_sequence + 1, text=text)
        view.marks.append((turn.last_sequence, len(text)))
        view.calls = list(turn.output.tool_calls)
        self.accepted = True
        self._views = [view]
        self._check_text(view)
        self._check_calls(view)

    def compare(self, other: "TurnNotes") -> None:
        """Checks that another's notes of the turn say the same. Raises ViolationError."""
        shorter, longer = sorted((self.longest, other.longest), key=len)
        if not longer.startswith(shorter):
            raise ViolationError(
                Kind.TEXT, f"{self.turn_id} says {shorter!r} to one and {longer!r} to another"
            )
        fewer, more = sorted((_what_of(self.calls), _what_of(other.calls)), key=len)
        if more[: len(fewer)] != fewer:
            raise ViolationError(
                Kind.TEXT, f"{self.turn_id} calls {fewer} to one and {more} to another"
            )
        if self.end is not None and other.end is not None and not (self.stopped or other.stopped):
            self._take_end(other.end)
            if fewer != more:
                raise ViolationError(Kind.LOST, f"{self.turn_id} calls {fewer}, and {more} before")

    def feed(self, event: TurnEvent, *, life: int) -> None:
        """Takes an event in. Raises ViolationError where it doesn't fit.

        Args:
            event: It.
            life: Which front end told it.
        """
        kind = event.WhichOneof("event")
        if kind == "reset":
            self._reset(event, life)
            return
        view = self._view_for(event)
        view.take(event)
        self.life = life
        if kind == "accepted":
            self.accepted = True
        self._check_text(view)
        if kind == "tool_call":
            self._check_calls(view)
        if kind in ("completed", "failed"):
            self._take_end(event)

    def _reset(self, event: TurnEvent, life: int) -> None:
        if life == self.life and self._best().next_sequence > 1 and self.end is None:
            raise ViolationError(
                Kind.UNRESUMED, f"{self.turn_id} was reset though its front end had lived on"
            )
        self._views = [View(epoch=event.epoch)]

    def _best(self) -> View:
        return max(self._views, key=lambda view: view.next_sequence)

    def _view_for(self, event: TurnEvent) -> View:
        for view in self._views:
            if view.expects(event):
                return view
        if event.first_sequence == 1 and len(self._views) < _MAX_VIEWS:
            # The turn was asked for again, and is told a second time beside the first.
            self._views.append(View())
            return self._views[-1]
        places = [(view.epoch, view.next_sequence) for view in self._views]
        raise ViolationError(
            Kind.UNRESUMED,
            f"{self.turn_id}: events {event.first_sequence} to {event.sequence} of epoch"
            f" {event.epoch} came, expected one of {places}",
        )

    def _check_text(self, view: View) -> None:
        shorter, longer = sorted((view.text, self.longest), key=len)
        if not longer.startswith(shorter):
            raise ViolationError(
                Kind.TEXT, f"{self.turn_id} says {view.text!r} and said {self.longest!r}"
            )
        self.longest = longer

    def _check_calls(self, view: View) -> None:
        """A call that was told stays: told again it is the same, ids included, and told once."""
        fewer, more = sorted((view.calls, self.calls), key=len)
        if more[: len(fewer)] != fewer:
            raise ViolationError(
                Kind.TEXT, f"{self.turn_id} calls {view.calls} and called {self.calls}"
            )
        if len({call.call_id for call in view.calls}) < len(view.calls):
            raise ViolationError(Kind.DOUBLED, f"{self.turn_id} tells twice of {view.calls}")
        self.calls = list(more)

    def _take_end(self, event: TurnEvent) -> None:
        earlier, self.end = self.end, event
        if earlier is None:
            return
        same = (
            earlier.WhichOneof("event") == event.WhichOneof("event")
            and earlier.completed.finish_reason == event.completed.finish_reason
            and earlier.failed.code == event.failed.code
        )
        if not same:
            raise ViolationError(
                Kind.DOUBLED, f"{self.turn_id} ended as {_ending(earlier)} and {_ending(event)}"
            )


def _what_of(calls: Sequence[ToolCall]) -> list[tuple[str, str]]:
    """Returns what is called; ids are told apart by session."""
    return [(call.tool_name, call.arguments_json) for call in calls]


def _ending(event: TurnEvent) -> str:
    return f"{event.WhichOneof('event')} ({event.failed.reason or event.completed.finish_reason})"
