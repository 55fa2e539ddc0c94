"""What a client knows of one session: the history that its calls have made."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from antiphon.v1.session_pb2 import HistoryPoint, StartTurn
from antiphon.v1.types_pb2 import Tool
from google.protobuf.empty_pb2 import Empty

from torture.turn_notes import TurnNotes


@dataclass(slots=True)
class SessionNotes:
    """One session; its calls come one after the other, so its history is known."""

    name: str
    instructions: str
    parent: str = ""
    """The session it was forked from."""
    fork_turn_id: str = ""
    history: list[TurnNotes] = field(default_factory=list)
    """Its completed turns, in order."""
    others: dict[str, TurnNotes] = field(default_factory=dict)
    """Its turns outside of the history: failed or superseded ones."""
    num_asked: int = 0
    tools: Sequence[Tool] = ()
    broken: bool = False
    """Something was wrong with it: what is known of it is worth nothing any more."""

    @property
    def session_id(self) -> str:
        """The last part of its name."""
        return self.name.removeprefix("sessions/")

    @property
    def head_name(self) -> str:
        """The name of the head turn; empty at the start."""
        return self.turn_name(self.history[-1]) if self.history else ""

    def turn_name(self, turn: TurnNotes) -> str:
        """The name of one of its turns."""
        return f"{self.name}/turns/{turn.turn_id}"

    def turns(self) -> Iterator[TurnNotes]:
        """Yields all that are known."""
        yield from self.history
        yield from self.others.values()

    def point(self, num_turns: int) -> HistoryPoint:
        """Returns the place behind the first so many turns."""
        if not num_turns:
            return HistoryPoint(start=Empty())
        return HistoryPoint(turn=self.turn_name(self.history[num_turns - 1]))

    def open_calls(self, num_turns: int) -> list[str]:
        """Returns the ids of the calls that wait for results behind the first so many turns."""
        if not num_turns or not self.history[num_turns - 1].keeps_calls:
            return []
        return [call.call_id for call in self.history[num_turns - 1].calls]

    def settle(self, turns: Sequence[TurnNotes]) -> None:
        """Takes in turns that have ended, in order."""
        for turn in turns:
            assert turn.end is not None
            if not turn.completed:
                self.others[turn.turn_id] = turn
                continue
            if isinstance(turn.frame, StartTurn) and turn.frame.HasField("rewind_to"):
                self.rewind(self._num_behind(turn.frame.rewind_to))
            self.history.append(turn)

    def rewind(self, num_turns: int) -> None:
        """Takes the history back to its first so many turns."""
        for turn in self.history[num_turns:]:
            self.others[turn.turn_id] = turn
        del self.history[num_turns:]

    def forked(self, name: str, num_turns: int) -> "SessionNotes":
        """Returns what a fork behind the first so many turns is."""
        return SessionNotes(
            name=name,
            instructions=self.instructions,
            parent=self.name,
            fork_turn_id=self.history[num_turns - 1].turn_id,
            history=self.history[:num_turns],
            tools=self.tools,
        )

    def _num_behind(self, point: HistoryPoint) -> int:
        if point.HasField("start"):
            return 0
        names = [self.turn_name(turn) for turn in self.history]
        return names.index(point.turn) + 1
