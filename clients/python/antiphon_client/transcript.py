"""What was told of a turn, however often and from whatever place it is told again."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from antiphon.v1 import session_pb2, types_pb2

from antiphon_client.errors import TurnRestarted

MAX_TELLINGS: Final = 8
"""How many tellings of a turn are followed side by side; the one furthest behind gives way."""

News: TypeAlias = session_pb2.TurnEvent | TurnRestarted
_TextKey: TypeAlias = tuple[int, int, str]

ANSWER: Final[_TextKey] = (0, types_pb2.OUTPUT_CHANNEL_CONTENT, "")
_ENDS: Final = ("completed", "failed")


class Gap(Exception):  # noqa: N818 - no error of the caller's
    """Events are missing between those that came."""


@dataclass(slots=True)
class _Lengths:
    """How much of each text and of each output's tokens a telling has come to."""

    texts: dict[_TextKey, int] = field(default_factory=dict)
    tokens: dict[int, int] = field(default_factory=dict)
    logprobs: dict[int, int] = field(default_factory=dict)


@dataclass(slots=True)
class _Telling:
    """The turn as one reader on the server tells it: from its start or a cursor, without gaps."""

    epoch: int
    sequence: int
    lengths: _Lengths = field(default_factory=_Lengths)


class _Text:
    """A text that grows piece by piece, and is looked into only where it is told again."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self.length = 0

    def append(self, piece: str) -> None:
        self._pieces.append(piece)
        self.length += len(piece)

    def cut(self, length: int) -> None:
        self._pieces = [self.whole()[:length]]
        self.length = length

    def whole(self) -> str:
        if len(self._pieces) > 1:
            self._pieces = ["".join(self._pieces)]
        return self._pieces[0] if self._pieces else ""


class Transcript:
    """Turns the events that a server sends of a turn into the news that its reader lacks.

    Where the turn is told again, what is equal to what came before is left out, to the character.
    Where it is not, TurnRestarted comes first, then what is new. Holds one answer's text.
    """

    def __init__(self, turn_id: str, cursor: session_pb2.TurnCursor | None = None) -> None:
        """Begins behind `cursor`, whose reader has what came up to it; default: at the start."""
        self._turn_id = turn_id
        self._front = _Telling(cursor.epoch, cursor.sequence) if cursor else _Telling(0, 0)
        self._tellings = [self._front]
        self._texts: dict[_TextKey, _Text] = {}
        self._tokens: dict[int, list[int]] = {}
        self._num_logprobs: dict[int, int] = {}
        self._told_once: set[str] = set()
        self._num_prompt_told = 0
        self._begins_midway = bool(self._front.sequence)
        self.ended = False
        """Whether the terminal event has come."""

    @property
    def cursor(self) -> session_pb2.TurnCursor:
        """How far the events have come."""
        return session_pb2.TurnCursor(
            turn_id=self._turn_id, epoch=self._front.epoch, sequence=self._front.sequence
        )

    def take(self, event: session_pb2.TurnEvent) -> Sequence[News]:
        """Returns what of `event` is news.

        Raises:
            Gap: events before it did not come.
        """
        if self.ended:
            return ()
        if event.HasField("reset"):
            return self._restart(_Telling(event.epoch, 0))
        restarted: Sequence[News] = ()
        telling = self._telling_of(event)
        if telling is None and (event.first_sequence or event.sequence) == 1:
            telling = _Telling(event.epoch, 0)
            restarted = self._begin(telling)
        if telling is None:
            return ()
        news = [*restarted, *self._news(telling, event)]
        if event.sequence:
            telling.epoch, telling.sequence = event.epoch, event.sequence
        if telling.sequence >= self._front.sequence:
            self._front = telling
        return news

    def _telling_of(self, event: session_pb2.TurnEvent) -> _Telling | None:
        """Returns the telling that `event` goes on with; None where it is at its start or told."""
        first = event.first_sequence or event.sequence
        if not first:
            return self._front
        for telling in self._tellings:
            if telling.sequence + 1 == first and (
                telling.epoch == event.epoch or not telling.sequence
            ):
                return telling
        is_told = event.epoch == self._front.epoch and first <= self._front.sequence
        if first == 1 or is_told:
            return None
        raise Gap(
            f"events {self._front.sequence + 1} to {first - 1} of the turn {self._turn_id}"
            " did not come"
        )

    def _begin(self, telling: _Telling) -> Sequence[News]:
        """Follows a telling from the turn's start beside the others."""
        if telling.epoch != self._front.epoch:
            return self._restart(telling)
        furthest = sorted(self._tellings, key=lambda each: each.sequence)
        self._tellings = [*furthest[1 - MAX_TELLINGS :], telling]
        return ()

    def _restart(self, telling: _Telling) -> Sequence[News]:
        """Follows this telling alone."""
        self._front = telling
        self._tellings = [telling]
        if not self._begins_midway:
            return ()
        # What the reader has of it is not known here.
        self._begins_midway = False
        return [self._cut(telling.lengths)]

    def _news(self, telling: _Telling, event: session_pb2.TurnEvent) -> Sequence[News]:
        kind = event.WhichOneof("event")
        if kind == "delta":
            return self._news_of_delta(telling, event)
        if kind in _ENDS:
            self.ended = True
            return [*self._withdrawn(telling, kind), event]
        if kind == "prompt_part":
            return self._news_of_prompt(event)
        if kind is None:
            return ()
        once = f"tool_call {event.tool_call.call_id}" if kind == "tool_call" else kind
        is_new = once not in self._told_once
        self._told_once.add(once)
        return [event] if is_new else ()

    def _news_of_prompt(self, event: session_pb2.TurnEvent) -> Sequence[News]:
        part = event.prompt_part
        end = part.first_position + max(len(part.token_ids), len(part.logprobs))
        num_told = self._num_prompt_told - part.first_position
        if end <= self._num_prompt_told:
            return ()
        self._num_prompt_told = end
        if num_told <= 0:
            return [event]
        # Told again, a prompt may be cut in other places.
        rest = session_pb2.TurnEvent()
        rest.CopyFrom(event)
        rest.prompt_part.first_position += num_told
        del rest.prompt_part.token_ids[:num_told]
        del rest.prompt_part.logprobs[:num_told]
        return [rest]

    def _news_of_delta(self, telling: _Telling, event: session_pb2.TurnEvent) -> Sequence[News]:
        delta, lengths = event.delta, telling.lengths
        key = (delta.output_index, delta.channel, delta.call_id)
        text = self._texts.setdefault(key, _Text())
        tokens = self._tokens.setdefault(delta.output_index, [])
        begin = lengths.texts.get(key, 0)
        num_told = min(len(delta.text), text.length - begin)
        first_token = lengths.tokens.get(delta.output_index, 0)
        tokens_told = min(len(delta.token_ids), len(tokens) - first_token)
        num_equal = _num_equal(text, begin, delta.text[:num_told]) if num_told else 0
        differs = (
            num_equal < num_told
            or tokens[first_token : first_token + tokens_told] != delta.token_ids[:tokens_told]
        )
        restarted: list[News] = []
        if differs:
            lengths.texts[key] = begin + num_equal
            restarted = [self._cut(lengths)]
            lengths.texts[key] = begin
            num_told, tokens_told = num_equal, min(tokens_told, len(tokens) - first_token)
        logprobs_told = self._count(lengths, delta, text=delta.text[num_told:])
        tokens.extend(delta.token_ids[tokens_told:])
        if not (num_told or tokens_told or logprobs_told):
            return [*restarted, event]
        rest = _without(event, num_told, tokens_told, logprobs_told)
        has_more = rest.delta.text or rest.delta.token_ids or rest.delta.logprobs
        return [*restarted, rest] if has_more else restarted

    def _count(self, lengths: _Lengths, delta: types_pb2.Delta, *, text: str) -> int:
        """Adds `text`, moves `lengths` behind `delta`, and returns how many logprobs are known."""
        output = delta.output_index
        key = (output, delta.channel, delta.call_id)
        if text:
            self._texts[key].append(text)
        lengths.texts[key] = lengths.texts.get(key, 0) + len(delta.text)
        if delta.token_ids:
            lengths.tokens[output] = lengths.tokens.get(output, 0) + len(delta.token_ids)
        if not delta.logprobs:
            return 0
        before = lengths.logprobs.get(output, 0)
        lengths.logprobs[output] = before + len(delta.logprobs)
        num_known = self._num_logprobs.get(output, 0)
        self._num_logprobs[output] = max(num_known, lengths.logprobs[output])
        return min(len(delta.logprobs), num_known - before)

    def _withdrawn(self, telling: _Telling, kind: str) -> Sequence[News]:
        """Returns the news that a turn which was started again has completed with less."""
        lengths = telling.lengths
        is_less = any(text.length > lengths.texts.get(key, 0) for key, text in self._texts.items())
        return [self._cut(lengths)] if is_less and kind == "completed" else ()

    def _cut(self, lengths: _Lengths) -> TurnRestarted:
        """Forgets all that is behind `lengths`."""
        for key, text in self._texts.items():
            text.cut(min(text.length, lengths.texts.get(key, 0)))
        for output, tokens in self._tokens.items():
            del tokens[lengths.tokens.get(output, 0) :]
        for output in self._num_logprobs:
            self._num_logprobs[output] = lengths.logprobs.get(output, 0)
        answer = self._texts.get(ANSWER)
        return TurnRestarted(self._turn_id, answer.whole() if answer else "")


def _num_equal(text: _Text, begin: int, piece: str) -> int:
    known = text.whole()
    if known.startswith(piece, begin):
        return len(piece)
    return next(index for index, c in enumerate(piece) if known[begin + index] != c)


def _without(
    event: session_pb2.TurnEvent, num_characters: int, num_tokens: int, num_logprobs: int
) -> session_pb2.TurnEvent:
    rest = session_pb2.TurnEvent()
    rest.CopyFrom(event)
    if num_characters:
        rest.delta.text = event.delta.text[num_characters:]
    del rest.delta.token_ids[:num_tokens]
    del rest.delta.logprobs[:num_logprobs]
    return rest
