"""Works a goal out into cases: sets of facts, each of them one way to satisfy it."""

from collections.abc import Iterator
from typing import Final

from antiphon_server.constraints.json_schema.goals import (
    TYPES,
    Absent,
    Claim,
    Fact,
    Goal,
    OfTypes,
    OneOf,
    Option,
    Part,
    Present,
    Workings,
)
from antiphon_server.constraints.json_schema.keyword import Keyword
from antiphon_server.constraints.json_schema.keywords_arrays import ARRAY_KEYWORDS
from antiphon_server.constraints.json_schema.keywords_logic import (
    LOGIC_KEYWORDS,
    REFERENCE_KEYWORDS,
)
from antiphon_server.constraints.json_schema.keywords_objects import OBJECT_KEYWORDS
from antiphon_server.constraints.json_schema.keywords_scalars import SCALAR_KEYWORDS
from antiphon_server.constraints.json_schema.keywords_values import VALUE_KEYWORDS
from antiphon_server.constraints.json_schema.schema_node import SchemaNode

_KEYWORDS: Final = {
    name: keyword
    for keyword in (
        *REFERENCE_KEYWORDS,
        *VALUE_KEYWORDS,
        *SCALAR_KEYWORDS,
        *OBJECT_KEYWORDS,
        *ARRAY_KEYWORDS,
        *LOGIC_KEYWORDS,
    )
    for name in keyword.names
}
_WITH_SCOPE: Final = ("unevaluatedProperties", "unevaluatedItems")


class Case:
    """One way to satisfy a goal.

    Attributes:
        types: The types that the value may have.
        facts: All else that is so, in the order of the schema's text.
    """

    def __init__(self) -> None:
        self.types = TYPES
        self.facts: list[Fact] = []
        self._claims: dict[SchemaNode, bool] = {}
        self._scoped: set[Claim] = set()
        self._present: set[str] = set()
        self._absent: set[str] = set()
        self._open: list[OneOf] = []

    def fork(self) -> "Case":
        """Returns a copy."""
        other = Case()
        other.types = self.types
        other.facts = list(self.facts)
        other._claims = dict(self._claims)
        other._scoped = set(self._scoped)
        other._present = set(self._present)
        other._absent = set(self._absent)
        other._open = list(self._open)
        return other

    def next_open(self) -> OneOf | None:
        """Takes off a choice that is still to be made; None: all are made."""
        if not self._open:
            return None
        fewest = min(range(len(self._open)), key=lambda index: len(self._open[index].options))
        return self._open.pop(fewest)

    def add(self, parts: Option, workings: Workings) -> bool:
        """Adds parts, and all that they entail; False: they contradict what is there."""
        return all(self._add(part, workings) for part in parts)

    def _add(self, part: Part, workings: Workings) -> bool:
        match part:
            case Claim():
                return self._add_claim(part, workings)
            case OneOf():
                if len(part.options) == 1:
                    return self.add(part.options[0], workings)
                self._open.append(part)
                return bool(part.options)
            case OfTypes():
                self.types &= part.types
            case Present():
                self._present.update(part.names)
                self.facts.append(part)
            case Absent():
                self._absent.add(part.name)
                self.facts.append(part)
            case _:
                self.facts.append(part)
        return self._is_consistent()

    def _is_consistent(self) -> bool:
        if self._present & self._absent:
            self.types -= {"object"}
        return bool(self.types)

    def _add_claim(self, claim: Claim, workings: Workings) -> bool:
        if isinstance(claim.node.value, bool):
            return claim.node.value == claim.holds
        known = self._claims.setdefault(claim.node, claim.holds)
        if known != claim.holds:
            return False
        if claim in self._scoped:
            return True
        self._scoped.add(claim)
        workings.budget.spend(claim.node.pointer)
        return self.add(parts_of(claim, workings), workings)


def cases_of(goal: Goal, workings: Workings) -> list[Case]:
    """Returns the ways to satisfy the goal. There may be one more than once.

    Raises:
        UnsupportedConstraintError: something in it can't be enforced.
        ConstraintTooComplexError: there are too many.
    """
    first = Case()
    ordered = sorted(goal, key=lambda claim: (claim.node.pointer, claim.holds))
    if not first.add(tuple(ordered), workings):
        return []
    done: list[Case] = []
    waiting = [first]
    while waiting:
        case = waiting.pop()
        choice = case.next_open()
        if choice is None:
            done.append(case)
            workings.budget.check_cases(_path_of(goal), len(done))
            continue
        workings.budget.spend(choice.path, len(choice.options))
        for option in reversed(choice.options):
            branch = case.fork()
            if branch.add(option, workings):
                waiting.append(branch)
    return done


def parts_of(claim: Claim, workings: Workings) -> tuple[Part, ...]:
    """Returns what a claim says."""
    workings.references.check_no_loop(claim.node)
    if claim.holds:
        return tuple(_holding(claim, workings))
    node = claim.node
    options = tuple(
        option for keyword in _keywords_of(node) for option in keyword.fails(node, workings)
    )
    return (OneOf(options, claim.node.pointer),)


def _holding(claim: Claim, workings: Workings) -> Iterator[Part]:
    scopes = claim.scopes
    if any(claim.node.has(keyword) for keyword in _WITH_SCOPE):
        scopes |= {claim.node.pointer}
    for keyword in _keywords_of(claim.node):
        yield from keyword.holds(claim.node, workings, scopes)


def _keywords_of(node: SchemaNode) -> list[Keyword]:
    """The keywords that are there, in the order of the text; unknown ones have no meaning."""
    if isinstance(node.value, bool):
        return []
    if node.dialect.reference_stands_alone and "$ref" in node.value:
        return [_KEYWORDS["$ref"]]
    known = dict.fromkeys(_KEYWORDS[name] for name in node.value if name in _KEYWORDS)
    return list(known)


def _path_of(goal: Goal) -> str:
    return min((claim.node.pointer for claim in goal), default="")
