"""Writes planned shapes as one Lark grammar."""

from antiphon_server.constraints.json_schema.goals import Goal
from antiphon_server.constraints.json_schema.lark_arrays import array_body
from antiphon_server.constraints.json_schema.lark_numbers import number_body
from antiphon_server.constraints.json_schema.lark_objects import object_body
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


def write_grammar(root: Goal, planned: PlannedShapes, book: RuleBook) -> LarkRules:
    """Returns the rules of exactly the texts of the root's values.

    Raises:
        ConstraintTooComplexError: the grammar is too long.
    """
    return _Writer(planned, book).write(root)


class _Writer:
    def __init__(self, planned: PlannedShapes, book: RuleBook) -> None:
        self._planned = planned
        self._book = book
        self._has_steps = any(
            isinstance(shape, NumberShape) and shape.steps
            for shapes in planned.by_goal.values()
            for shape in shapes
        )
        self._names: dict[Goal, str] = {}
        self._waiting: list[Goal] = []

    def write(self, root: Goal) -> LarkRules:
        start = self._rule_of(root)
        while self._waiting:
            goal = self._waiting.pop()
            bodies = [self._body(shape) for shape in self._planned.by_goal[goal]]
            self._book.define(self._names[goal], " | ".join(bodies))
        return self._book.finish(start)

    def _rule_of(self, goal: Goal) -> str:
        if goal not in self._names:
            self._names[goal] = self._book.new_rule()
            self._waiting.append(goal)
        return self._names[goal]

    def _body(self, shape: Shape) -> str:
        match shape:
            case NullShape():
                return self._book.fixed("null")
            case BooleanShape():
                words = ["true" if value else "false" for value in sorted(shape.values)]
                return self._book.terminal(f"/{'|'.join(words)}/")
            case NumberShape():
                return number_body(shape, self._book, by_character=self._has_steps)
            case StringShape():
                return self._book.string(shape.texts)
            case ObjectShape():
                return object_body(shape, self._book, self._rule_of)
            case ArrayShape():
                return array_body(shape, self._planned.runs.get(shape), self._book, self._rule_of)
