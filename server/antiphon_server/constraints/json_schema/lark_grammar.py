"""Writes planned shapes as one Lark grammar."""

from collections.abc import Sequence
from typing import Final

from antiphon_server.constraints.json_schema.goals import Goal
from antiphon_server.constraints.json_schema.lark_arrays import array_inside
from antiphon_server.constraints.json_schema.lark_numbers import number_body
from antiphon_server.constraints.json_schema.lark_objects import object_inside
from antiphon_server.constraints.json_schema.lark_rules import LarkRules, RuleBook
from antiphon_server.constraints.json_schema.plan_shapes import PlannedShapes
from antiphon_server.constraints.json_schema.shapes import (
    ArrayShape,
    BooleanShape,
    NullShape,
    NumberShape,
    ObjectShape,
    Shape,
    StringShape,
)

_FIRSTS: Final = {
    NullShape: "n",
    BooleanShape: "tf",
    NumberShape: "-0123456789",
    StringShape: '"',
    ObjectShape: "{",
    ArrayShape: "[",
}
"""What texts begin with, by their shape."""


def write_grammar(
    root: Goal, planned: PlannedShapes, book: RuleBook, *, begins_with_blank: bool
) -> LarkRules:
    """Returns the rules of exactly the texts of the root's values.

    Args:
        root: What they satisfy.
        planned: The shapes of all that it leads to.
        book: Takes the rules.
        begins_with_blank: Whether white space may stand in front of the whole.

    Raises:
        ConstraintTooComplexError: the grammar is too long.
    """
    writer = _Writer(planned, book)
    start = writer.write(root) if begins_with_blank else writer.write_without_blank(root)
    shapes = planned.by_goal[root]
    return LarkRules(
        start,
        book.finish(),
        firsts="".join(dict.fromkeys("".join(_FIRSTS[type(shape)] for shape in shapes))),
        may_be_number=any(isinstance(shape, NumberShape) for shape in shapes),
        by_character=writer.by_character,
    )


class _Writer:
    def __init__(self, planned: PlannedShapes, book: RuleBook) -> None:
        self._planned = planned
        self._book = book
        self.by_character = any(
            isinstance(shape, NumberShape) and shape.steps
            for shapes in planned.by_goal.values()
            for shape in shapes
        )
        self._names: dict[Goal, str] = {}
        self._waiting: list[Goal] = []

    def write(self, root: Goal) -> str:
        """Defines all rules and returns the root's."""
        start = self._rule_of(root)
        self._write_waiting()
        return start

    def write_without_blank(self, root: Goal) -> str:
        """Does the same with a rule for the root that only it is under."""
        start = self._book.new_rule()
        with self._book.without_blank():
            openings = [self._opening(shape) for shape in self._planned.by_goal[root]]
        self._define(start, root, openings)
        self._write_waiting()
        return start

    def _write_waiting(self) -> None:
        while self._waiting:
            goal = self._waiting.pop()
            openings = [self._opening(shape) for shape in self._planned.by_goal[goal]]
            self._define(self._names[goal], goal, openings)

    def _define(self, rule: str, goal: Goal, openings: Sequence[str]) -> None:
        shapes = self._planned.by_goal[goal]
        bodies = map(self._body, shapes, openings)
        self._book.define(rule, " | ".join(bodies))

    def _rule_of(self, goal: Goal) -> str:
        if goal not in self._names:
            self._names[goal] = self._book.new_rule()
            self._waiting.append(goal)
        return self._names[goal]

    def _opening(self, shape: Shape) -> str:
        """The bracket of an object or array; all of another value."""
        match shape:
            case NullShape():
                return self._book.fixed("null")
            case BooleanShape():
                words = ["true" if value else "false" for value in sorted(shape.values)]
                return self._book.terminal(f"/{'|'.join(words)}/")
            case NumberShape():
                return number_body(shape, self._book, by_character=self.by_character)
            case StringShape():
                return self._book.string(shape.texts)
            case ObjectShape():
                return self._book.fixed("{")
            case ArrayShape():
                return self._book.fixed("[")

    def _body(self, shape: Shape, opening: str) -> str:
        match shape:
            case ObjectShape():
                return f"{opening} {object_inside(shape, self._book, self._rule_of)}"
            case ArrayShape():
                run = self._planned.runs.get(shape)
                return f"{opening} {array_inside(shape, run, self._book, self._rule_of)}"
            case _:
                return opening
