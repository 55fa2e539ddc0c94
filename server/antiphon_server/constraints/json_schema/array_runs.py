"""Arrays whose items are counted or differ, as automata over the goals of their items."""

from dataclasses import dataclass

from antiphon_server.constraints.json_schema.goals import Goal, is_refuted
from antiphon_server.constraints.json_schema.limits import Budget
from antiphon_server.constraints.json_schema.shapes import ArrayShape


@dataclass(frozen=True, slots=True)
class Edge:
    """An item that satisfies a goal leads on to a state."""

    goal: Goal
    target: int


@dataclass(frozen=True, slots=True)
class ArrayRun:
    """An automaton. It starts in state 0.

    Attributes:
        edges: Of each state.
        ends: The states in which the array may end.
    """

    edges: tuple[tuple[Edge, ...], ...]
    ends: frozenset[int]


def array_run(shape: ArrayShape, budget: Budget) -> ArrayRun | None:
    """Returns the automaton of an array; None: none is needed."""
    if shape.distinct is not None:
        return _distinct_run(shape, shape.distinct, budget)
    return _tallied_run(shape, budget) if shape.tallies else None


def _distinct_run(shape: ArrayShape, values: tuple[Goal, ...], budget: Budget) -> ArrayRun:
    """A state is the set of the values that have been."""
    numbers = {frozenset[int](): 0}
    waiting = [frozenset[int]()]
    edges: dict[int, tuple[Edge, ...]] = {}
    ends = set()
    while waiting:
        used = waiting.pop()
        budget.spend("", len(values))
        if len(used) >= shape.low:
            ends.add(numbers[used])
        found = []
        for index, goal in enumerate(values):
            if index in used or (shape.high is not None and len(used) >= shape.high):
                continue
            after = used | {index}
            if after not in numbers:
                numbers[after] = len(numbers)
                waiting.append(after)
            found.append(Edge(goal, numbers[after]))
        edges[numbers[used]] = tuple(found)
    return ArrayRun(tuple(edges[number] for number in range(len(numbers))), frozenset(ends))


def _tallied_run(shape: ArrayShape, budget: Budget) -> ArrayRun:
    """A state is how many items have been, and how many of them each tally has counted."""
    start = (0, (0,) * len(shape.tallies))
    numbers = {start: 0}
    waiting = [start]
    edges: dict[int, tuple[Edge, ...]] = {}
    ends = set()
    while waiting:
        state = waiting.pop()
        length, counted = state
        budget.spend("", 2 ** len(shape.tallies))
        pairs = list(zip(counted, shape.tallies, strict=True))
        if length >= shape.low and all(count >= tally.low for count, tally in pairs):
            ends.add(numbers[state])
        found = []
        for goal, after in _steps(shape, length, counted):
            if after not in numbers:
                numbers[after] = len(numbers)
                waiting.append(after)
            found.append(Edge(goal, numbers[after]))
        edges[numbers[state]] = tuple(found)
    return ArrayRun(tuple(edges[number] for number in range(len(numbers))), frozenset(ends))


def _steps(
    shape: ArrayShape, length: int, counted: tuple[int, ...]
) -> list[tuple[Goal, tuple[int, tuple[int, ...]]]]:
    """The goals of a next item, and the states behind it."""
    if shape.high is not None and length >= shape.high:
        return []
    goal = shape.first[length] if length < len(shape.first) else shape.rest
    enough = max(shape.low, len(shape.first), *(tally.start for tally in shape.tallies))
    longer = length + 1 if shape.high is not None else min(length + 1, enough)
    ways: list[tuple[Goal, tuple[int, ...]]] = [(goal, ())]
    for count, tally in zip(counted, shape.tallies, strict=True):
        more = []
        for so_far, counts in ways:
            if length < tally.start:
                more.append((so_far, (*counts, count)))
                continue
            if tally.high is None:
                if count < tally.low:
                    more.append((so_far | tally.goal, (*counts, count + 1)))
                more.append((so_far, (*counts, count)))
                continue
            if count < tally.high:
                more.append((so_far | tally.goal, (*counts, count + 1)))
            more.append((so_far | tally.others, (*counts, count)))
        ways = more
    return [(each, (longer, counts)) for each, counts in ways if not is_refuted(each)]
