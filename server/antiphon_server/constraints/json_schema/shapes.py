"""What a value looks like that satisfies a goal in one of its ways: values of one type, exactly."""

from dataclasses import dataclass
from decimal import Decimal
from typing import TypeAlias

from antiphon_server.constraints.json_schema.goals import Goal
from antiphon_server.constraints.languages.terms import Term


@dataclass(frozen=True, slots=True)
class NullShape:
    """Null."""


@dataclass(frozen=True, slots=True)
class BooleanShape:
    """One of some booleans."""

    values: frozenset[bool]


@dataclass(frozen=True, slots=True)
class Step:
    """Whole multiples of `modulus` in units of the last of `num_digits` decimal places.

    Attributes:
        holds: False: the numbers that aren't multiples, but have as few decimal places.
    """

    modulus: int
    num_digits: int
    holds: bool


@dataclass(frozen=True, slots=True)
class NumberShape:
    """Numbers as they are written.

    Attributes:
        texts: Their texts.
        steps: What they are multiples of besides, and what not.
        numbers: All that they may be; None: many, or not known.
    """

    texts: Term
    steps: tuple[Step, ...] = ()
    numbers: frozenset[Decimal] | None = None


@dataclass(frozen=True, slots=True)
class StringShape:
    """Strings by their contents."""

    texts: Term


@dataclass(frozen=True, slots=True)
class Member:
    """A member of an object whose name is known."""

    name: str
    goal: Goal
    is_required: bool


@dataclass(frozen=True, slots=True)
class OtherMembers:
    """Members of an object with any name of a language."""

    names: Term
    goal: Goal


@dataclass(frozen=True, slots=True)
class ObjectShape:
    """Objects: their known members in this order, some of them left out, then others.

    Attributes:
        others: What others there may be.
        last: A member that is there and comes last, so that no equal name can come behind it.
        low: Members at least.
        high: Members at most; None: any number.
    """

    members: tuple[Member, ...]
    others: tuple[OtherMembers, ...]
    last: OtherMembers | None
    low: int
    high: int | None


@dataclass(frozen=True, slots=True)
class Tally:
    """Of the items behind the first `start`, so many satisfy a goal; `others`: what the rest do."""

    goal: Goal
    others: Goal
    low: int
    high: int | None
    start: int


@dataclass(frozen=True, slots=True)
class ArrayShape:
    """Arrays: the first items one by one, then others alike.

    Attributes:
        low: Items at least.
        high: Items at most; None: any number.
        distinct: The items come from these goals of one value each, no goal twice; None: they may
            be equal.
    """

    first: tuple[Goal, ...]
    rest: Goal
    low: int
    high: int | None
    tallies: tuple[Tally, ...] = ()
    distinct: tuple[Goal, ...] | None = None


Shape: TypeAlias = NullShape | BooleanShape | NumberShape | StringShape | ObjectShape | ArrayShape
