"""Takes a part apart into the ways in which its texts begin."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from antiphon_server.constraints.languages.terms import (
    EMPTY,
    NOTHING,
    Term,
    choice,
    repeat,
    sequence,
)
from antiphon_server.constraints.refusals import ConstraintTooComplexError
from antiphon_server.constraints.structural_tags.parts import (
    NO_TEXT,
    Again,
    Options,
    Part,
    Row,
    Text,
    Value,
    ValueSource,
    again,
    row,
)

MAX_WAYS: Final = 4096
"""Ways of all places of a tag together."""


@dataclass(frozen=True, slots=True)
class Way:
    """A text, then a value or nothing, then what is left.

    Attributes:
        before: The texts.
        value: What stands behind them; None: nothing. Then the text isn't empty.
        behind: What is left.
    """

    before: Term
    value: ValueSource | None
    behind: Part


@dataclass(frozen=True, slots=True)
class Beginnings:
    """How a part's texts go.

    Attributes:
        whole: Those without a value in them.
        ways: How the others begin. Their texts differ in what follows.
    """

    whole: Term
    ways: tuple[Way, ...]


class Taker:
    """Takes parts apart and remembers how."""

    def __init__(self, *, cuts: bool) -> None:
        """Sets whether ways may end without a value, where text meets what isn't one value.

        That makes fewer and shorter terminals, but needs a text whose end is plain to see.
        """
        self._cuts = cuts
        self._known: dict[Part, Beginnings] = {}
        self._num_ways = 0

    def take(self, part: Part) -> Beginnings:
        """Returns how a part's texts go.

        Raises:
            ConstraintTooComplexError: there are too many ways.
        """
        if part not in self._known:
            self._known[part] = self._take(part)
            self._num_ways += len(self._known[part].ways)
            if self._num_ways > MAX_WAYS:
                raise ConstraintTooComplexError(
                    f"the structural tag can go on in more than {MAX_WAYS} ways; use fewer tags, "
                    "or smaller repeats",
                    limit=str(MAX_WAYS),
                )
        return self._known[part]

    def _take(self, part: Part) -> Beginnings:
        match part:
            case Text():
                return Beginnings(part.language, ())
            case Value():
                return Beginnings(NOTHING, (Way(EMPTY, part.source, NO_TEXT),))
            case Options():
                taken = [self.take(each) for each in part.parts]
                return _joined(
                    choice(*(each.whole for each in taken)),
                    (way for each in taken for way in each.ways),
                )
            case Row():
                return self._take_row(part)
            case Again():
                return self._take_again(part)

    def _take_row(self, part: Row) -> Beginnings:
        head, rest = part.parts[0], row(*part.parts[1:])
        follows = part.parts[1]
        if isinstance(head, Text) and self._may_cut(head, follows):
            return Beginnings(NOTHING, (Way(head.language, None, rest),))
        first, second = self.take(head), self.take(rest)
        ways = [Way(way.before, way.value, row(way.behind, rest)) for way in first.ways]
        if first.whole != NOTHING:
            ways += [
                Way(sequence(first.whole, way.before), way.value, way.behind) for way in second.ways
            ]
        return _joined(sequence(first.whole, second.whole), ways)

    def _may_cut(self, head: Text, follows: Part) -> bool:
        return self._cuts and not isinstance(follows, Value) and not head.language.nullable

    def _take_again(self, part: Again) -> Beginnings:
        once = self.take(part.part)
        ways = [
            Way(sequence(skipped, way.before), way.value, row(way.behind, left))
            for skipped, left in _skips(once.whole, part)
            for way in once.ways
        ]
        return _joined(repeat(once.whole, part.low, part.high), ways)


def _skips(whole: Term, part: Again) -> Iterator[tuple[Term, Part]]:
    """Yields what may stand before the first turn with a value, and the turns behind that."""
    if whole in (NOTHING, EMPTY):
        yield EMPTY, _left(part, 0)
        return
    if part.high is not None:
        for count in range(part.high):
            yield repeat(whole, count, count), _left(part, count)
        return
    for count in range(part.low - 1):
        yield repeat(whole, count, count), _left(part, count)
    yield repeat(whole, max(part.low - 1, 0), None), again(part.part, 0, None)


def _left(part: Again, count: int) -> Part:
    """The turns behind so many and one more."""
    high = None if part.high is None else part.high - count - 1
    return again(part.part, max(part.low - count - 1, 0), high)


def _joined(whole: Term, ways: Iterable[Way]) -> Beginnings:
    """Ways that go on alike are one."""
    joined: dict[tuple[ValueSource | None, Part], list[Term]] = {}
    for way in ways:
        joined.setdefault((way.value, way.behind), []).append(way.before)
    return Beginnings(whole, tuple(Way(choice(*texts), *key) for key, texts in joined.items()))
