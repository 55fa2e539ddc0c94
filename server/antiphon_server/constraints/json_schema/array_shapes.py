"""Arrays from the facts about them."""

from collections.abc import Callable, Iterable
from itertools import combinations

from antiphon_server.constraints.json_schema.goals import (
    ANYTHING,
    Claim,
    Containing,
    Distinct,
    Fact,
    Goal,
    ItemCount,
    Items,
    UnevaluatedItems,
    is_refuted,
)
from antiphon_server.constraints.json_schema.shapes import ArrayShape, Tally
from antiphon_server.constraints.refusals import UnsupportedConstraintError

MAX_DISTINCT = 10
"""Values of which every order is written into the grammar."""

SingleValues = Callable[[Goal], tuple[Goal, ...] | None]
"""Returns goals of one value each that together are a goal; None: they are many, or not known."""
Disjoint = Callable[[Goal, Goal], bool]


def array_shape(
    facts: Iterable[Fact], single_values: SingleValues, surely_disjoint: Disjoint
) -> ArrayShape | None:
    """Returns the arrays that fit the facts; None: there are none.

    Raises:
        UnsupportedConstraintError: they can't be told apart from others.
    """
    known = [_as_count(fact) for fact in facts]
    low, high = _counts(known)
    first, rest = _layout(known)
    for index, goal in enumerate(first):
        if is_refuted(goal):
            high = index if high is None else min(high, index)
            break
    if is_refuted(rest):
        high = len(first) if high is None else min(high, len(first))
    if high is not None and high < low:
        return None
    if high is not None:
        first = first[:high]
    tallies = tuple(tally for fact in known if (tally := _tally(fact)) is not None)
    if any(tally.high is not None and tally.high < tally.low for tally in tallies):
        return None
    shape = ArrayShape(first, rest, low, high, tallies)
    distinct = [fact for fact in known if isinstance(fact, Distinct)]
    if not distinct:
        return shape
    return _distinct(shape, distinct[0].path, single_values, surely_disjoint)


def _as_count(fact: Fact) -> Fact:
    """That an array contains just anything says how long it is."""
    if isinstance(fact, Containing) and fact.goal == ANYTHING:
        high = None if fact.high is None else fact.high + fact.start
        return ItemCount(fact.low + fact.start if fact.low else 0, high)
    return fact


def _counts(facts: list[Fact]) -> tuple[int, int | None]:
    low = max((fact.low for fact in facts if isinstance(fact, ItemCount)), default=0)
    highs = [fact.high for fact in facts if isinstance(fact, ItemCount) and fact.high is not None]
    return low, min(highs) if highs else None


def _layout(facts: list[Fact]) -> tuple[tuple[Goal, ...], Goal]:
    layouts = [fact for fact in facts if isinstance(fact, Items)]
    unevaluated = sorted(
        (fact for fact in facts if isinstance(fact, UnevaluatedItems)),
        key=lambda each: -len(each.scopes),
    )
    for fact in unevaluated:
        _check_countable(fact, facts)
    num_first = max((len(layout.first) for layout in layouts), default=0)
    first = tuple(_goal_at(index, layouts, unevaluated) for index in range(num_first))
    return first, _goal_at(None, layouts, unevaluated)


def _goal_at(index: int | None, layouts: list[Items], unevaluated: list[UnevaluatedItems]) -> Goal:
    """What the item at an index satisfies; None: one behind all that are listed."""
    goal: Goal = ANYTHING
    evaluated: set[str] = set()
    for layout in layouts:
        if index is not None and index < len(layout.first):
            goal |= layout.first[index]
            evaluated |= layout.scopes
        elif layout.rest is not None:
            goal |= layout.rest
            evaluated |= layout.scopes
    for fact in unevaluated:
        if fact.scope not in evaluated:
            goal |= fact.goal
            evaluated |= fact.scopes
    return goal


def _check_countable(unevaluated: UnevaluatedItems, facts: list[Fact]) -> None:
    for fact in facts:
        if isinstance(fact, Containing) and unevaluated.scope in fact.scopes:
            raise UnsupportedConstraintError(
                unevaluated.path, "this can't be enforced beside contains, which evaluates items"
            )


def _tally(fact: Fact) -> Tally | None:
    if not isinstance(fact, Containing) or (fact.low == 0 and fact.high is None):
        return None
    others: Goal = ANYTHING
    if fact.high is not None:
        claim = next(iter(fact.goal), None)
        if claim is None or len(fact.goal) > 1:
            raise UnsupportedConstraintError(fact.path, "an upper bound on this can't be enforced")
        others = frozenset({Claim(claim.node, not claim.holds)})
    return Tally(fact.goal, others, fact.low, fact.high, fact.start)


def _distinct(
    shape: ArrayShape, path: str, single_values: SingleValues, surely_disjoint: Disjoint
) -> ArrayShape | None:
    """The same arrays without equal items, where that is a matter of a few values."""
    if shape.high is not None and shape.high <= 1:
        return shape
    pairs = combinations(shape.first, 2)
    all_listed = shape.high is not None and shape.high <= len(shape.first)
    if all_listed and all(surely_disjoint(one, other) for one, other in pairs):
        return shape
    values = None if shape.first or shape.tallies else single_values(shape.rest)
    if values is None:
        raise UnsupportedConstraintError(
            path,
            f"items that differ can be enforced for at most {MAX_DISTINCT} listed values, or where "
            "maxItems is 1",
        )
    if len(values) < shape.low:
        return None
    high = len(values) if shape.high is None else min(shape.high, len(values))
    return ArrayShape((), shape.rest, shape.low, high, distinct=values)
