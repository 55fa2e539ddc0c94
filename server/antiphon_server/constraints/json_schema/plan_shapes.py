"""All goals that a schema leads to, with the shapes that some value really has."""

from collections.abc import Iterator, Set
from dataclasses import replace

from antiphon_server.constraints.json_schema.array_runs import ArrayRun, array_run
from antiphon_server.constraints.json_schema.goals import Goal
from antiphon_server.constraints.json_schema.shapes import ArrayShape, ObjectShape, Shape
from antiphon_server.constraints.json_schema.workings import GoalWorkings
from antiphon_server.constraints.refusals import (
    ConstraintTooComplexError,
    UnsupportedConstraintError,
)


class PlannedShapes:
    """The shapes of every goal that the root leads to; those that no value has are left out.

    Attributes:
        by_goal: The shapes of each goal; a goal that isn't there has no value.
        runs: The automata of arrays that need one.
    """

    def __init__(self, root: Goal, workings: GoalWorkings) -> None:
        """Works everything out.

        Raises:
            UnsupportedConstraintError: something can't be enforced, or no value satisfies the root.
            ConstraintTooComplexError: a limit is passed.
        """
        self._workings = workings
        self.runs: dict[ArrayShape, ArrayRun] = {}
        all_shapes = self._reachable(root)
        useful = self._useful(all_shapes)
        if root not in useful:
            raise UnsupportedConstraintError("", "no value satisfies this schema")
        self.by_goal = {
            goal: tuple(
                self._without_useless(shape, useful)
                for shape in all_shapes[goal]
                if self._has_value(shape, useful)
            )
            for goal in all_shapes
            if goal in useful
        }

    def _reachable(self, root: Goal) -> dict[Goal, tuple[Shape, ...]]:
        found: dict[Goal, tuple[Shape, ...]] = {}
        waiting = [root]
        most = self._workings.budget.limits.max_rules
        while waiting:
            goal = waiting.pop()
            if goal in found:
                continue
            found[goal] = self._workings.shapes(goal)
            if len(found) > most:
                raise ConstraintTooComplexError(
                    f"the schema has more than {most} places to tell apart; use a smaller one",
                    limit=str(most),
                )
            for shape in found[goal]:
                waiting.extend(self._goals_within(shape))
        return found

    def _goals_within(self, shape: Shape) -> Iterator[Goal]:
        match shape:
            case ObjectShape():
                yield from (member.goal for member in shape.members)
                yield from (others.goal for others in shape.others)
                if shape.last is not None:
                    yield shape.last.goal
            case ArrayShape():
                run = array_run(shape, self._workings.budget)
                if run is None:
                    yield from shape.first
                    if shape.high is None or shape.high > len(shape.first):
                        yield shape.rest
                else:
                    self.runs[shape] = run
                    yield from (edge.goal for edges in run.edges for edge in edges)

    def _useful(self, all_shapes: dict[Goal, tuple[Shape, ...]]) -> set[Goal]:
        """The goals that some finite value satisfies."""
        useful: set[Goal] = set()
        waiting = list(all_shapes)
        while True:
            left = []
            for goal in reversed(waiting):
                if any(self._has_value(shape, useful) for shape in all_shapes[goal]):
                    useful.add(goal)
                else:
                    left.append(goal)
            if len(left) == len(waiting):
                return useful
            waiting = left[::-1]

    def _has_value(self, shape: Shape, useful: Set[Goal]) -> bool:
        match shape:
            case ObjectShape():
                needed = [member.goal for member in shape.members if member.is_required]
                if shape.last is not None:
                    needed.append(shape.last.goal)
                if not all(goal in useful for goal in needed):
                    return False
                has_others = any(others.goal in useful for others in shape.others)
                count = sum(member.goal in useful for member in shape.members)
                return has_others or count + (shape.last is not None) >= shape.low
            case ArrayShape() if shape in self.runs:
                return _reaches_end(self.runs[shape], useful)
            case ArrayShape():
                if not all(goal in useful for goal in shape.first[: shape.low]):
                    return False
                return shape.low <= len(shape.first) or shape.rest in useful
            case _:
                return True

    def _without_useless(self, shape: Shape, useful: Set[Goal]) -> Shape:
        match shape:
            case ObjectShape():
                return replace(
                    shape,
                    members=tuple(each for each in shape.members if each.goal in useful),
                    others=tuple(each for each in shape.others if each.goal in useful),
                )
            case ArrayShape() if shape in self.runs:
                self.runs[shape] = _without_dead_ends(self.runs[shape], useful)
                return shape
            case ArrayShape():
                return _cut(shape, useful)
            case _:
                return shape


def _cut(shape: ArrayShape, useful: Set[Goal]) -> ArrayShape:
    """The same arrays, ended before the first item that can't be."""
    for index, goal in enumerate(shape.first):
        if goal not in useful:
            return replace(shape, first=shape.first[:index], high=index)
    if shape.rest not in useful:
        num_first = len(shape.first)
        return replace(shape, high=num_first if shape.high is None else min(shape.high, num_first))
    return shape


def _live_states(run: ArrayRun, useful: Set[Goal]) -> set[int]:
    """The states from which an end can be reached."""
    live = set(run.ends)
    while True:
        more = {
            state
            for state, edges in enumerate(run.edges)
            if state not in live
            and any(edge.target in live and edge.goal in useful for edge in edges)
        }
        if not more:
            return live
        live |= more


def _reaches_end(run: ArrayRun, useful: Set[Goal]) -> bool:
    return 0 in _live_states(run, useful)


def _without_dead_ends(run: ArrayRun, useful: Set[Goal]) -> ArrayRun:
    live = _live_states(run, useful)
    edges = tuple(
        tuple(edge for edge in edges if edge.target in live and edge.goal in useful)
        for edges in run.edges
    )
    return ArrayRun(edges, run.ends)
