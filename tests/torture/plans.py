"""What clients ask, drawn from a seed."""

import random
from collections.abc import Callable
from dataclasses import dataclass

from antiphon.v1.session_pb2 import AppendItems, StartTurn
from antiphon.v1.types_pb2 import (
    ROLE_USER,
    ChatMessage,
    GenerationConfig,
    Item,
    OutputOptions,
    SamplingParams,
    StopConditions,
)

from torture.session_notes import SessionNotes
from torture.talk import Manner, Step
from torture.turn_notes import TurnNotes

_WORDS = [
    "harbour",
    "morning",
    "ferry",
    "lower",
    "pier",
    "weather",
    "assistant",
    "tool",
    "number",
    "largest",
    "shells",
    "total",
    "book",
    "capital",
    "river",
    "answer",
    "letters",
    "frost",
    "onions",
    "müde",
    "naïve",
    "東京",
    "кот",
    "quartet",
    "midnight",
    "signals",
    "fence",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How long turns are."""

    least_tokens: int = 3
    most_tokens: int = 60
    endless_tokens: int = 100_000
    """Of a turn that is to be stopped."""
    temperature: float = 1.0


class Plans:
    """Draws turns and conversations for one client."""

    def __init__(self, rng: random.Random, scale: Scale, draw_turn_id: Callable[[], str]) -> None:
        self._rng = rng
        self._scale = scale
        self._draw_turn_id = draw_turn_id

    def text(self, first: str = "") -> str:
        """Draws a text; `first` makes it one of a kind."""
        words = self._rng.choices(_WORDS, k=self._rng.randint(2, 20))
        return " ".join([first, *words] if first else words)

    def append(self, session: SessionNotes) -> TurnNotes:
        """Draws a turn without output."""
        turn_id = self._draw_turn_id()
        session.num_asked += 1
        return TurnNotes(turn_id, AppendItems(turn_id=turn_id, items=[user(self.text(turn_id))]))

    def turn(self, session: SessionNotes, *, alone: bool, num_tokens: int = 0) -> TurnNotes:
        """Draws a turn with output.

        Args:
            session: Where.
            alone: Whether no other turn is under way, so that its place may be named.
            num_tokens: How many output tokens at most; 0: drawn.
        """
        rng, turn_id = self._rng, self._draw_turn_id()
        session.num_asked += 1
        num_tokens = num_tokens or rng.randint(self._scale.least_tokens, self._scale.most_tokens)
        frame = StartTurn(
            turn_id=turn_id,
            items=[user(self.text(turn_id))],
            config=GenerationConfig(
                sampling=SamplingParams(
                    seed=rng.getrandbits(32), temperature=self._scale.temperature
                ),
                stop=StopConditions(
                    max_output_tokens=num_tokens,
                    ignore_eos=num_tokens == self._scale.endless_tokens or None,
                ),
                output=OutputOptions(token_ids=True) if rng.random() < 0.2 else None,
            ),
        )
        if alone and rng.random() < 0.3:
            frame.expected_head.CopyFrom(session.point(len(session.history)))
        if alone and session.history and rng.random() < 0.15:
            frame.rewind_to.CopyFrom(session.point(rng.randrange(len(session.history) + 1)))
        return TurnNotes(turn_id, frame)

    def conversation(self, session: SessionNotes) -> list[Step]:
        """Draws what is sent on a stream: turns in a row, one cancelled or one interrupting."""
        rng = self._rng
        shape = rng.choice(("single", "single", "row", "cancel", "interrupt", "append"))
        first = self.turn(session, alone=True)
        if shape == "single":
            return [Step(turn=first)]
        if shape == "append":
            return [Step(turn=self.append(session)), Step(turn=self.turn(session, alone=False))]
        if shape == "row":
            rest = [self.turn(session, alone=False) for _ in range(rng.randint(1, 3))]
            return [Step(turn=first), *(Step(turn=turn) for turn in rest)]
        long = self.turn(session, alone=True, num_tokens=4 * self._scale.most_tokens)
        num_events = rng.randint(1, 12)
        if shape == "cancel":
            discards = rng.random() < 0.3
            stop = Step(
                turn=long, cancels=True, discards=discards, behind=long, num_events=num_events
            )
            next_turn = self.turn(session, alone=False)
            # Right behind the cancellation: it must never be refused as busy.
            follow = Step(turn=next_turn, behind=long, num_events=num_events)
            return [Step(turn=long), stop, follow]
        steering = self.turn(session, alone=False)
        assert isinstance(steering.frame, StartTurn)
        steering.frame.if_busy = StartTurn.IF_BUSY_INTERRUPT
        return [Step(turn=long), Step(turn=steering, behind=long, num_events=num_events)]

    def manner(self, attachment_id: str) -> Manner:
        """Draws how a stream is used."""
        rng = self._rng
        return Manner(
            attachment_id=attachment_id if rng.random() < 0.6 else "",
            breaks_after=rng.randint(1, 20) if rng.random() < 0.3 else 0,
            max_unacked_events=rng.choice((1, 4, 64)) if rng.random() < 0.3 else 0,
            half_closes=rng.random() < 0.2,
        )


def user(text: str) -> Item:
    """Returns a user's message."""
    return Item(message=ChatMessage(role=ROLE_USER, text=text))
