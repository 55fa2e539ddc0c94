"""Whether two shapes have no value in common, as far as it's easily seen."""

from collections.abc import Callable, Iterator

from antiphon_server.constraints.json_schema.goals import Goal
from antiphon_server.constraints.json_schema.scalar_shapes import narrowed
from antiphon_server.constraints.json_schema.shapes import (
    ArrayShape,
    BooleanShape,
    NumberShape,
    ObjectShape,
    Shape,
    StringShape,
)
from antiphon_server.constraints.languages.derivatives import matches
from antiphon_server.constraints.languages.terms import NOTHING, Term, both

Disjoint = Callable[[Goal, Goal], bool]


def shapes_surely_disjoint(one: Shape, other: Shape, goals_disjoint: Disjoint) -> bool:
    """Says whether no value has both shapes; False may also mean that it isn't known."""
    if type(one) is not type(other):
        return True
    match one, other:
        case BooleanShape(), BooleanShape():
            answer = not one.values & other.values
        case StringShape(), StringShape():
            answer = _texts_disjoint(one.texts, other.texts)
        case NumberShape(), NumberShape():
            # Every shape of numbers has the plain text of each of its numbers.
            answer = _texts_disjoint(one.texts, other.texts)
        case ObjectShape(), ObjectShape():
            answer = _demands_what_the_other_lacks(one, other, goals_disjoint) or (
                _demands_what_the_other_lacks(other, one, goals_disjoint)
            )
        case ArrayShape(), ArrayShape():
            answer = _arrays_disjoint(one, other, goals_disjoint)
        case _:
            answer = False
    return answer


def _texts_disjoint(one: Term, other: Term) -> bool:
    return narrowed(both(one, other)) == NOTHING


def _demands_what_the_other_lacks(
    one: ObjectShape, other: ObjectShape, goals_disjoint: Disjoint
) -> bool:
    for member in one.members:
        if member.is_required:
            goals = list(_goals_of(member.name, other))
            if all(goals_disjoint(member.goal, goal) for goal in goals):
                return True
    return False


def _goals_of(name: str, shape: ObjectShape) -> Iterator[Goal]:
    """What the member of a name may satisfy, one way or another."""
    for member in shape.members:
        if member.name == name:
            yield member.goal
    for others in shape.others:
        if matches(others.names, name):
            yield others.goal


def _arrays_disjoint(one: ArrayShape, other: ArrayShape, goals_disjoint: Disjoint) -> bool:
    if one.high is not None and one.high < other.low:
        return True
    if other.high is not None and other.high < one.low:
        return True
    for index in range(min(max(one.low, other.low), max(len(one.first), len(other.first)) + 1)):
        if goals_disjoint(_item_goal(one, index), _item_goal(other, index)):
            return True
    return False


def _item_goal(shape: ArrayShape, index: int) -> Goal:
    return shape.first[index] if index < len(shape.first) else shape.rest
