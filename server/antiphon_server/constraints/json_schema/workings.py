"""Works goals out into shapes, and remembers what it found."""

from collections.abc import Iterator
from decimal import Decimal
from typing import Final

from antiphon_server.constraints.json_schema.array_shapes import MAX_DISTINCT, array_shape
from antiphon_server.constraints.json_schema.disjointness import shapes_surely_disjoint
from antiphon_server.constraints.json_schema.document import Json
from antiphon_server.constraints.json_schema.expansion import Case, cases_of
from antiphon_server.constraints.json_schema.goals import (
    ARRAY,
    BOOLEAN,
    NULL,
    NUMBER,
    OBJECT,
    STRING,
    Goal,
    is_refuted,
)
from antiphon_server.constraints.json_schema.keyword import equal_to
from antiphon_server.constraints.json_schema.limits import Budget
from antiphon_server.constraints.json_schema.object_shapes import object_shapes
from antiphon_server.constraints.json_schema.references import References
from antiphon_server.constraints.json_schema.scalar_shapes import (
    boolean_shape,
    number_shapes,
    string_shape,
)
from antiphon_server.constraints.json_schema.shapes import (
    BooleanShape,
    NullShape,
    NumberShape,
    Shape,
    StringShape,
)
from antiphon_server.constraints.languages.derivatives import finite_texts
from antiphon_server.constraints.languages.terms import Term, choice
from antiphon_server.constraints.refusals import UnsupportedConstraintError

_MAX_LOOK: Final = 3
"""Levels of nesting that are looked into to tell two goals apart."""


class GoalWorkings:
    """The shapes of a document's goals. See `Workings` for what keywords use of it."""

    def __init__(self, references: References, budget: Budget) -> None:
        self.references = references
        self.budget = budget
        self._shapes: dict[Goal, tuple[Shape, ...]] = {}
        self._in_progress: set[Goal] = set()
        self._disjoint: dict[tuple[Goal, Goal], bool] = {}
        self._look = 0

    def shapes(self, goal: Goal) -> tuple[Shape, ...]:
        """Returns what values that satisfy the goal look like; together they are all of them.

        Raises:
            UnsupportedConstraintError: something in the goal can't be enforced.
            ConstraintTooComplexError: a limit is passed.
        """
        if goal in self._shapes:
            return self._shapes[goal]
        if goal in self._in_progress:
            path = min(claim.node.pointer for claim in goal)
            raise UnsupportedConstraintError(path, "what this means depends on itself")
        self._in_progress.add(goal)
        look, self._look = self._look, 0
        found: dict[Shape, None] = {}
        path = min((claim.node.pointer for claim in goal), default="")
        for case in () if is_refuted(goal) else cases_of(goal, self):
            found.update(dict.fromkeys(self._shapes_of(case, path)))
            self.budget.check_cases(path, len(found))
        self._in_progress.discard(goal)
        self._look = look
        self._shapes[goal] = tuple(found)
        return self._shapes[goal]

    def surely_disjoint(self, one: Goal, other: Goal) -> bool:
        """Says whether no value satisfies both; False may also mean that it isn't known."""
        if is_refuted(one | other):
            return True
        if one == other or self._look >= _MAX_LOOK:
            return False
        if one in self._in_progress or other in self._in_progress:
            return False
        known = self._disjoint.get((one, other))
        if known is not None:
            return known
        self._look += 1
        answer = self._look_into(one, other)
        self._look -= 1
        self._disjoint[one, other] = self._disjoint[other, one] = answer
        return answer

    def texts(self, goal: Goal) -> Term:
        """Returns the strings that satisfy a goal."""
        shapes = self.shapes(goal)
        return choice(*(shape.texts for shape in shapes if isinstance(shape, StringShape)))

    def single_values(self, goal: Goal) -> tuple[Goal, ...] | None:
        """Returns goals of one value each that together are the goal; None: they are many."""
        node = min((claim.node for claim in goal), key=lambda node: node.pointer, default=None)
        if node is None or goal in self._in_progress:
            return None
        values: dict[Goal, None] = {}
        for shape in self.shapes(goal):
            listed = _values_of(shape)
            if listed is None:
                return None
            values.update(dict.fromkeys(equal_to(node, value) for value in listed))
        return tuple(values) if len(values) <= MAX_DISTINCT else None

    def _look_into(self, one: Goal, other: Goal) -> bool:
        ones, others = self.shapes(one), self.shapes(other)
        path = min((claim.node.pointer for claim in one), default="")
        self.budget.spend(path, len(ones) * len(others))
        return all(shapes_surely_disjoint(a, b, self.surely_disjoint) for a in ones for b in others)

    def _shapes_of(self, case: Case, path: str) -> Iterator[Shape]:
        facts = case.facts
        if NULL in case.types:
            yield NullShape()
        if BOOLEAN in case.types and (booleans := boolean_shape(facts)) is not None:
            yield booleans
        if NUMBER in case.types:
            yield from number_shapes(facts)
        if STRING in case.types and (strings := string_shape(facts)) is not None:
            yield strings
        if OBJECT in case.types:
            yield from object_shapes(facts, self.budget, path)
        if ARRAY in case.types:
            arrays = array_shape(facts, self.single_values, self.surely_disjoint)
            if arrays is not None:
                yield arrays


def _values_of(shape: Shape) -> list[Json] | None:
    """A shape's values; None: they are many, or not known."""
    match shape:
        case NullShape():
            return [None]
        case BooleanShape():
            return list(shape.values)
        case StringShape():
            texts = finite_texts(shape.texts, MAX_DISTINCT)
            return None if texts is None else list[Json](sorted(texts))
        case NumberShape():
            if shape.numbers is not None:
                return list[Json](sorted(shape.numbers))
            written = finite_texts(shape.texts, MAX_DISTINCT) if not shape.steps else None
            return (
                None if written is None else list[Json](sorted({Decimal(each) for each in written}))
            )
        case _:
            return None
