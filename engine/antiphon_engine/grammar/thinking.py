"""Reasoning before an answer: where it ends, and how it is made to end.

No grammar holds until the end marker has been said; blanks behind the marker belong to it. A token
that would carry the marker's end and the answer's beginning is not drawn where a grammar waits:
the answer is then spelled by tokens of its own, so that all of it is the grammar's.
"""

import enum
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from antiphon_engine.api.grammar import Thinking
from antiphon_engine.grammar.base import mask_words
from antiphon_engine.grammar.vocabulary import Vocabulary

BLANKS = b" \t\r\n"
MAX_BLANKS = 16
"""Blanks behind the marker that belong to it, where a grammar waits."""


class Phase(enum.Enum):
    """How far an output has come."""

    REASONING = enum.auto()
    BLANKS = enum.auto()
    """Behind the marker; nothing of the answer has been said."""
    ANSWER = enum.auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class EndMarker:
    """What a vocabulary makes of a marker. Shared by all outputs whose reasoning it ends."""

    text: bytes
    spellings: tuple[tuple[int, ...], ...]
    """By how many bytes of it have been said: the tokens that say the rest."""
    overrunning: tuple[NDArray[np.int64], ...]
    """Likewise: the tokens that would end it and begin the answer."""
    blank_words: NDArray[np.int32]
    """[W] the tokens that are blanks alone, at most `MAX_BLANKS`."""
    blank_led_words: NDArray[np.int32]
    """[W] those that begin with a blank."""

    @classmethod
    def of(cls, text: str, vocabulary: Vocabulary) -> "EndMarker":
        """Returns the marker of this text. Looks at every token: no work for a step."""
        marker = text.rstrip(BLANKS.decode()).encode() or text.encode()
        numbers = range(len(marker))
        blank_led = [i for i, token in enumerate(vocabulary.tokens) if token[:1] in _BLANK_BYTES]
        blank = [
            token_id
            for token_id in blank_led
            if not vocabulary.tokens[token_id].strip(BLANKS)
            and len(vocabulary.tokens[token_id]) <= MAX_BLANKS
        ]
        # Only tokens that go on behind the marker's last byte can end it and begin the answer.
        longer = [
            token_id
            for token_id, token in enumerate(vocabulary.tokens)
            if marker[-1] in token[:-1] and token_id not in vocabulary.control_ids
        ]
        return cls(
            text=marker,
            spellings=tuple(_spell(marker[said:], vocabulary) for said in numbers),
            overrunning=tuple(
                np.array(
                    [i for i in longer if _runs_over(marker, said, vocabulary.tokens[i])], np.int64
                )
                for said in numbers
            ),
            blank_words=_words(blank, vocabulary.size),
            blank_led_words=_words(blank_led, vocabulary.size),
        )

    def follow(self, said: int, text: bytes) -> tuple[int, int]:
        """Reads on.

        Args:
            said: How many bytes of the marker were said last, fewer than all.
            text: What comes next.

        Returns:
            How many have been said now, and how many bytes of `text` were read: less than all
            where the marker ends inside of it.
        """
        for num_read, byte in enumerate(text, start=1):
            while said and self.text[said] != byte:
                said = _longest_border(self.text[:said])
            said += self.text[said] == byte
            if said == len(self.text):
                return said, num_read
        return said, len(text)


_BLANK_BYTES = frozenset(BLANKS[i : i + 1] for i in range(len(BLANKS)))


class ThinkingGate:
    """Where one output stands in or behind its reasoning."""

    def __init__(self, thinking: Thinking, marker: EndMarker) -> None:
        self.phase = Phase.REASONING
        self.marker = marker
        self._max_tokens = thinking.max_tokens
        self._num_tokens = 0
        self._said = 0
        self._forced: tuple[int, ...] = self._begin_to_force()
        self._num_blanks = 0

    def fork(self) -> "ThinkingGate":
        """Returns another gate that stands at the same place."""
        other = object.__new__(ThinkingGate)
        other.__dict__.update(self.__dict__)
        return other

    @property
    def forced_id(self) -> int | None:
        """The token that must come next, where the reasoning has had its time."""
        return self._forced[0] if self._forced else None

    @property
    def overrunning_ids(self) -> NDArray[np.int64]:
        """The tokens that would end the reasoning and begin the answer."""
        return self.marker.overrunning[self._said]

    @property
    def has_room_for_blanks(self) -> bool:
        """Whether blanks may come behind the marker still."""
        return self._num_blanks < MAX_BLANKS

    def accept(self, token: bytes) -> bool:
        """Goes on behind a token; returns whether it is the answer's, at least in part."""
        if self.phase is Phase.ANSWER:
            return True
        if self.phase is Phase.REASONING:
            self._num_tokens += 1
            self._said, num_read = self.marker.follow(self._said, token)
            if self._said < len(self.marker.text):
                self._forced = self._forced[1:] or self._begin_to_force()
                return False
            self._forced = ()
            self.phase = Phase.BLANKS
            token = token[num_read:]
        if token.strip(BLANKS):
            self.phase = Phase.ANSWER
            return True
        self._num_blanks += len(token)
        return False

    def allow_blanks(self, words: NDArray[np.int32]) -> None:
        """Changes a mask of the answer's first tokens into one of what may follow the marker."""
        words &= ~self.marker.blank_led_words
        if self.has_room_for_blanks:
            words |= self.marker.blank_words

    def _begin_to_force(self) -> tuple[int, ...]:
        if self._max_tokens is None or self._num_tokens < self._max_tokens:
            return ()
        return self.marker.spellings[self._said]


def _spell(text: bytes, vocabulary: Vocabulary) -> tuple[int, ...]:
    """Returns tokens that say a text, each the longest that fits.

    A marker may be a control token as a whole. Empty where the vocabulary can't spell it.
    """
    by_text: dict[bytes, int] = {}
    for token_id, token in enumerate(vocabulary.tokens):
        if token and text.find(token) >= 0:
            if token_id in vocabulary.control_ids and token != text:
                continue
            by_text.setdefault(token, token_id)
    spelling: list[int] = []
    while text:
        fitting = (size for size in range(len(text), 0, -1) if text[:size] in by_text)
        size = next(fitting, 0)
        if not size:
            return ()
        spelling.append(by_text[text[:size]])
        text = text[size:]
    return tuple(spelling)


def _runs_over(marker: bytes, said: int, token: bytes) -> bool:
    """Returns whether a token ends the marker and goes on with more than blanks."""
    while True:
        end = len(marker) - said
        if token.startswith(marker[said:]) and token[end:].strip(BLANKS):
            return True
        if not said:
            break
        said = _longest_border(marker[:said])
    place = token.find(marker)
    return place >= 0 and bool(token[place + len(marker) :].strip(BLANKS))


def _longest_border(text: bytes) -> int:
    """Returns the length of the longest proper beginning of `text` that is its end too."""
    return next((n for n in range(len(text) - 1, 0, -1) if text.endswith(text[:n])), 0)


def _words(token_ids: list[int], vocabulary_size: int) -> NDArray[np.int32]:
    bits = np.zeros(mask_words(vocabulary_size) * 32, np.uint8)
    bits[token_ids] = 1
    return np.packbits(bits, bitorder="little").view(np.int32)
