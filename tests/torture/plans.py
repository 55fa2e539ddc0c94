"""What clients ask, drawn from a seed."""

import json
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
    Tool,
    ToolChoice,
    ToolResult,
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
    tools_share: float = 0.4
    """Of sessions, which offer tools."""
    must_call: bool = False
    """Whether turns of those ask for a call: a model that nobody scripted makes none by itself."""
    most_calling_tokens: int = 160
    """Of a turn that may call: calls are long."""


OPEN = Tool(
    name="open",
    parameters_json_schema=json.dumps(
        {
            "type": "object",
            "properties": {"code": {"type": "string", "maxLength": 8}},
            "required": ["code"],
            "additionalProperties": False,
        }
    ),
)
CALLS = [
    f'<tool_call>\n{{"name": "open", "arguments": {{"code": "{code}"}}}}\n</tool_call>'
    for code in ("a", "bb", "müde", "ab12", "")
]
"""What calls it."""


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

    def tools(self) -> list[Tool]:
        """Draws what a session offers."""
        return [OPEN] if self._rng.random() < self._scale.tools_share else []

    def append(self, session: SessionNotes) -> TurnNotes:
        """Draws a turn without output."""
        turn_id = self._draw_turn_id()
        session.num_asked += 1
        items = self._items(session, turn_id, len(session.history))
        return TurnNotes(turn_id, AppendItems(turn_id=turn_id, items=items))

    def turn(self, session: SessionNotes, *, alone: bool, num_tokens: int = 0) -> TurnNotes:
        """Draws a turn with output.

        Args:
            session: Where.
            alone: Whether no other turn is under way, so that its place may be named.
            num_tokens: How many output tokens at most; 0: drawn.
        """
        rng, turn_id = self._rng, self._draw_turn_id()
        session.num_asked += 1
        scale, place = self._scale, len(session.history)
        most_tokens = scale.most_calling_tokens if session.tools else scale.most_tokens
        num_tokens = num_tokens or rng.randint(scale.least_tokens, most_tokens)
        rewinds = alone and bool(place) and rng.random() < 0.15
        if rewinds:
            place = rng.randrange(place + 1)
        # One that stands behind another turn stands behind one that does not call.
        items = self._items(session, turn_id, place if alone else 0)
        must_call = scale.must_call and bool(session.tools)
        frame = StartTurn(
            turn_id=turn_id,
            items=items,
            config=GenerationConfig(
                sampling=SamplingParams(seed=rng.getrandbits(32), temperature=scale.temperature),
                stop=StopConditions(
                    max_output_tokens=num_tokens,
                    # What may call ends where it has called: it can't be told to go on.
                    ignore_eos=(num_tokens == scale.endless_tokens and not session.tools) or None,
                ),
                output=OutputOptions(token_ids=True) if rng.random() < 0.2 else None,
                tool_choice=ToolChoice(mode=ToolChoice.MODE_REQUIRED) if must_call else None,
            ),
        )
        if alone and rng.random() < 0.3:
            frame.expected_head.CopyFrom(session.point(len(session.history)))
        if rewinds:
            frame.rewind_to.CopyFrom(session.point(place))
        return TurnNotes(turn_id, frame)

    def _items(self, session: SessionNotes, turn_id: str, num_turns: int) -> list[Item]:
        """Draws what a turn behind the first so many says: results first, then its own text."""
        results = [
            Item(tool_result=ToolResult(call_id=call_id, text=self.text()))
            for call_id in session.open_calls(num_turns)
        ]
        return [*results, user(self.text(turn_id))]

    def conversation(self, session: SessionNotes) -> list[Step]:
        """Draws what is sent on a stream: turns in a row, one cancelled or one interrupting."""
        rng = self._rng
        shape = rng.choice(("single", "single", "row", "cancel", "interrupt", "append"))
        if session.tools and shape in ("row", "interrupt"):
            shape = "single"  # What follows has to bring results of calls that nobody knows yet.
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
            if session.tools:
                return [Step(turn=long), stop]
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
