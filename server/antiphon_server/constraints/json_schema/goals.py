"""What has to hold at one place of an output, and how it is told to be satisfied."""

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Final, Protocol, TypeAlias

from antiphon_server.constraints.json_schema.limits import Budget
from antiphon_server.constraints.json_schema.references import References
from antiphon_server.constraints.json_schema.schema_node import SchemaNode
from antiphon_server.constraints.languages.terms import Term

NULL: Final = "null"
BOOLEAN: Final = "boolean"
NUMBER: Final = "number"
STRING: Final = "string"
ARRAY: Final = "array"
OBJECT: Final = "object"
TYPES: Final = frozenset({NULL, BOOLEAN, NUMBER, STRING, ARRAY, OBJECT})

Scopes: TypeAlias = frozenset[str]
"""The places whose `unevaluated…` keyword wants to know what is looked at; see there."""
NO_SCOPES: Final[Scopes] = frozenset()


@dataclass(frozen=True, slots=True)
class Claim:
    """A subschema that the value satisfies, or doesn't."""

    node: SchemaNode
    holds: bool
    scopes: Scopes = NO_SCOPES


Goal: TypeAlias = frozenset[Claim]
"""Subschemas that one value satisfies or doesn't, all of them. Without any: every value does."""
ANYTHING: Final[Goal] = frozenset()


def goal_of(node: SchemaNode, *, holds: bool = True) -> Goal:
    """Returns the goal of one subschema."""
    if isinstance(node.value, bool) and node.value == holds:
        return ANYTHING
    return frozenset({Claim(node, holds)})


def is_refuted(goal: Goal) -> bool:
    """Says whether no value can satisfy the goal, as far as a look tells."""
    for claim in goal:
        if isinstance(claim.node.value, bool) and claim.node.value != claim.holds:
            return True
    return any(Claim(claim.node, not claim.holds) in goal for claim in goal)


@dataclass(frozen=True, slots=True)
class OfTypes:
    """The value has one of some types."""

    types: frozenset[str]


@dataclass(frozen=True, slots=True)
class Whole:
    """A number is whole, or isn't."""

    is_whole: bool


@dataclass(frozen=True, slots=True)
class Above:
    """A number is at least the bound; strictly: above it."""

    bound: Decimal
    strictly: bool


@dataclass(frozen=True, slots=True)
class Below:
    """A number is at most the bound; strictly: below it."""

    bound: Decimal
    strictly: bool


@dataclass(frozen=True, slots=True)
class Multiple:
    """A number is a multiple of a step, or isn't."""

    step: Decimal
    holds: bool
    path: str


@dataclass(frozen=True, slots=True)
class NumberAmong:
    """A number is one of some, or isn't."""

    numbers: frozenset[Decimal]
    holds: bool


@dataclass(frozen=True, slots=True)
class TextIn:
    """A string is in a language."""

    language: Term
    path: str


@dataclass(frozen=True, slots=True)
class Truths:
    """A boolean is one of some."""

    values: frozenset[bool]


@dataclass(frozen=True, slots=True)
class Members:
    """What an object's members are, by their names: `properties` and its siblings.

    `others` is for names that neither `named` has nor a pattern matches; None: they are free, and
    not looked at.
    """

    named: Mapping[str, Goal]
    patterns: tuple[tuple[Term, Goal], ...]
    others: Goal | None
    scopes: Scopes

    def __hash__(self) -> int:
        return hash((tuple(self.named), self.patterns, self.others))


@dataclass(frozen=True, slots=True)
class UnevaluatedMembers:
    """What an object's members are that nothing within a scope has looked at."""

    scope: str
    goal: Goal
    scopes: Scopes


@dataclass(frozen=True, slots=True)
class Present:
    """An object has some members."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Absent:
    """An object doesn't have a member."""

    name: str


@dataclass(frozen=True, slots=True)
class NamesIn:
    """An object's names are all in a language."""

    language: Term


@dataclass(frozen=True, slots=True)
class SomeMember:
    """An object has a member with a name of a language and a value that satisfies a goal."""

    names: Term
    goal: Goal
    path: str


@dataclass(frozen=True, slots=True)
class MemberCount:
    """An object has so many members; None: any number above."""

    low: int
    high: int | None
    path: str


@dataclass(frozen=True, slots=True)
class Items:
    """What an array's items are; `rest` None: those behind the first are free, not looked at."""

    first: tuple[Goal, ...]
    rest: Goal | None
    scopes: Scopes


@dataclass(frozen=True, slots=True)
class UnevaluatedItems:
    """What an array's items are that nothing within a scope has looked at."""

    scope: str
    goal: Goal
    scopes: Scopes
    path: str


@dataclass(frozen=True, slots=True)
class ItemCount:
    """An array has so many items; None: any number above."""

    low: int
    high: int | None


@dataclass(frozen=True, slots=True)
class Containing:
    """Of an array's items behind the first `start`, so many satisfy a goal of one subschema."""

    goal: Goal
    low: int
    high: int | None
    path: str
    start: int = 0
    scopes: Scopes = NO_SCOPES


@dataclass(frozen=True, slots=True)
class Distinct:
    """An array has no two equal items."""

    path: str


Fact: TypeAlias = (
    OfTypes | Whole | Above | Below | Multiple | NumberAmong | TextIn | Truths | Members
    | UnevaluatedMembers | Present | Absent | NamesIn | SomeMember | MemberCount | Items
    | UnevaluatedItems | ItemCount | Containing | Distinct
)  # fmt: skip
Option: TypeAlias = "tuple[Part, ...]"


@dataclass(frozen=True, slots=True)
class OneOf:
    """At least one of some options holds; each is parts that hold together. None: nothing holds."""

    options: tuple[Option, ...]
    path: str


Part: TypeAlias = Fact | Claim | OneOf
"""One of the things that a subschema says."""


class Workings(Protocol):
    """What keywords may ask while their schema is worked out."""

    references: References
    budget: Budget

    def surely_disjoint(self, one: Goal, other: Goal) -> bool:
        """Says whether no value satisfies both; False may also mean that it isn't known."""
        ...

    def texts(self, goal: Goal) -> Term:
        """Returns the strings that satisfy a goal."""
        ...
