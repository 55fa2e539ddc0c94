"""Random EBNF grammars with a recogniser that knows nothing but their rules."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

LETTERS = "abé<"
_NAMES = ("root", "item", "more-1", "b_2")
_MAX_DEPTH = 2
_REPEATS: Sequence[tuple[str, int, int | None]] = (
    ("*", 0, None),
    ("+", 1, None),
    ("?", 0, 1),
    ("{2}", 2, 2),
    ("{1,3}", 1, 3),
    ("{2,}", 2, None),
    ("{0,2}", 0, 2),
)


@dataclass(frozen=True, slots=True)
class Literal:
    text: str


@dataclass(frozen=True, slots=True)
class Letters:
    members: str
    negated: bool

    def has(self, letter: str) -> bool:
        return (letter in self.members) != self.negated


@dataclass(frozen=True, slots=True)
class Rule:
    name: str


@dataclass(frozen=True, slots=True)
class Row:
    parts: "tuple[Part, ...]"


@dataclass(frozen=True, slots=True)
class Ways:
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    part: "Part"
    sign: str
    least: int
    most: int | None


Part: TypeAlias = Literal | Letters | Rule | Row | Ways | Repeat


class TooLong(Exception):  # noqa: N818 - an answer
    """A text that is drawn has no end in sight."""


@dataclass(frozen=True, slots=True)
class RandomGrammar:
    """Rules by their names; the first is `root`."""

    rules: Mapping[str, Ways]

    @property
    def text(self) -> str:
        """As callers write it."""
        return "\n".join(f"{name} ::= {_spelt(ways)}" for name, ways in self.rules.items())

    def has(self, text: str) -> bool:
        """Returns whether the grammar produces a text."""
        return len(text) in _Reader(self.rules, text).ends(Rule("root"), 0)

    def draw(self, chooser: random.Random) -> str:
        """Returns a text of the grammar. Raises TooLong."""
        budget = [60]

        def drawn(part: Part) -> str:
            budget[0] -= 1
            if budget[0] < 0:
                raise TooLong
            match part:
                case Literal(text):
                    return text
                case Letters():
                    return chooser.choice([each for each in LETTERS if part.has(each)])
                case Rule(name):
                    return drawn(self.rules[name])
                case Row(parts):
                    return "".join(drawn(each) for each in parts)
                case Ways(rows):
                    return drawn(chooser.choice(rows))
                case Repeat():
                    most = part.least + 2 if part.most is None else part.most
                    times = chooser.randint(part.least, most)
                    return "".join(drawn(part.part) for _ in range(times))

        return drawn(Rule("root"))


def make_grammar(chooser: random.Random) -> RandomGrammar:
    """Returns a grammar; whether all its rules have an end is left to chance."""
    names = _NAMES[: chooser.randint(1, len(_NAMES))]
    return RandomGrammar({name: _ways(chooser, names, 0) for name in names})


def _ways(chooser: random.Random, names: Sequence[str], depth: int) -> Ways:
    return Ways(tuple(_row(chooser, names, depth) for _ in range(chooser.choice((1, 1, 2, 3)))))


def _row(chooser: random.Random, names: Sequence[str], depth: int) -> Row:
    return Row(tuple(_part(chooser, names, depth) for _ in range(chooser.choice((1, 1, 2, 3)))))


def _part(chooser: random.Random, names: Sequence[str], depth: int) -> Part:
    chance = chooser.random()
    part: Part
    if chance < 0.4:
        part = Literal("".join(chooser.choices(LETTERS, k=chooser.choice((0, 1, 1, 2)))))
    elif chance < 0.6:
        members = "".join(chooser.sample(LETTERS, k=chooser.randint(1, 3)))
        part = Letters(members, negated=chooser.random() < 0.3)
    elif chance < 0.8 or depth >= _MAX_DEPTH:
        part = Rule(chooser.choice(names))
    else:
        part = _ways(chooser, names, depth + 1)
    if chooser.random() < 0.3:
        part = Repeat(part, *chooser.choice(_REPEATS))
    return part


def _spelt(part: Part) -> str:
    match part:
        case Literal(text):
            return f'"{text}"'
        case Letters(members, negated):
            return f"[{'^' * negated}{members}]"
        case Rule(name):
            return name
        case Row(parts):
            return " ".join(
                f"({_spelt(each)})" if isinstance(each, Ways) else _spelt(each) for each in parts
            )
        case Ways(rows):
            return " | ".join(map(_spelt, rows))
        case Repeat():
            inner = _spelt(part.part)
            return (f"({inner})" if isinstance(part.part, Ways) else inner) + part.sign


@dataclass(slots=True)
class _Reader:
    """Where parts that begin at a place may end, found by trying until nothing is new."""

    rules: Mapping[str, Ways]
    text: str
    _known: dict[tuple[str, int], frozenset[int]] = field(default_factory=dict)
    _grew: bool = False

    def ends(self, part: Part, start: int) -> frozenset[int]:
        while True:
            self._grew = False
            found = self._ends(part, start)
            for name, place in list(self._known):
                self._look(name, place)
            if not self._grew:
                return found

    def _look(self, name: str, place: int) -> None:
        found = self._ends(self.rules[name], place)
        if not found <= self._known[name, place]:
            self._known[name, place] |= found
            self._grew = True

    def _ends(self, part: Part, start: int) -> frozenset[int]:
        match part:
            case Literal(text):
                fits = self.text.startswith(text, start)
                return frozenset([start + len(text)]) if fits else frozenset()
            case Letters():
                fits = start < len(self.text) and part.has(self.text[start])
                return frozenset([start + 1]) if fits else frozenset()
            case Rule(name):
                if (name, start) not in self._known:
                    self._known[name, start] = frozenset()
                    self._grew = True
                return self._known[name, start]
            case Row(parts):
                places = frozenset([start])
                for each in parts:
                    places = self._behind(each, places)
                return places
            case Ways(rows):
                return frozenset().union(*(self._ends(row, start) for row in rows))
            case Repeat():
                return self._repeated(part, start)

    def _behind(self, part: Part, places: frozenset[int]) -> frozenset[int]:
        return frozenset().union(*(self._ends(part, place) for place in places))

    def _repeated(self, repeat: Repeat, start: int) -> frozenset[int]:
        places = frozenset([start])
        for _ in range(repeat.least):
            places = self._behind(repeat.part, places)
        found, rounds = places, 0
        while places and (repeat.most is None or rounds < repeat.most - repeat.least):
            places = self._behind(repeat.part, places) - found
            found |= places
            rounds += 1
        return found
