"""Writes planned shapes as one Lark grammar."""

from dataclasses import dataclass
from typing import Final

from antiphon_server.constraints.json_schema.goals import Goal
from antiphon_server.constraints.json_schema.lark_arrays import array_inside
from antiphon_server.constraints.json_schema.lark_numbers import number_body
from antiphon_server.constraints.json_schema.lark_objects import object_inside
from antiphon_server.constraints.json_schema.lark_rules import (
    MAX_WITHIN_LINE,
    LarkRules,
    RuleBook,
)
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
_MAX_AT_START: Final = 2
"""White space in front of a whole text: as much as models write behind their thinking."""


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
    start = writer.write(root, max_blank=_MAX_AT_START if begins_with_blank else 0)
    shapes = planned.by_goal[root]
    return LarkRules(
        start,
        book.finish(),
        firsts="".join(dict.fromkeys("".join(_FIRSTS[type(shape)] for shape in shapes))),
        may_be_number=any(isinstance(shape, NumberShape) for shape in shapes),
        by_character=writer.by_character,
    )


@dataclass(frozen=True, slots=True)
class _Place:
    """A value where so much white space may stand in front of it."""

    goal: Goal
    max_blank: int


class _Writer:
    def __init__(self, planned: PlannedShapes, book: RuleBook) -> None:
        self._planned = planned
        self._book = book
        self.by_character = any(
            isinstance(shape, NumberShape) and shape.steps
            for shapes in planned.by_goal.values()
            for shape in shapes
        )
        self._names: dict[_Place, str] = {}
        self._waiting: list[_Place] = []

    def write(self, root: Goal, *, max_blank: int) -> str:
        """Defines all rules and returns one for the root that only it is under.

        Args:
            root: What all is.
            max_blank: White-space characters that may stand in front of all of it.
        """
        start = self._book.new_rule()
        self._define(start, _Place(root, max_blank))
        while self._waiting:
            place = self._waiting.pop()
            self._define(self._names[place], place)
        return start

    def _define(self, rule: str, place: "_Place") -> None:
        shapes = self._planned.by_goal[place.goal]
        with self._book.less_blank(place.max_blank):
            openings = [self._opening(shape) for shape in shapes]
        self._book.define(rule, " | ".join(map(self._body, shapes, openings)))

    def _rule_of(self, goal: Goal) -> str:
        """Returns the rule of a value on which a line may begin."""
        return self._rule_at(_Place(goal, self._book.max_blank))

    def _rule_of_member(self, goal: Goal) -> str:
        """Returns the rule of a value behind a name."""
        return self._rule_at(_Place(goal, min(MAX_WITHIN_LINE, self._book.max_blank)))

    def _rule_at(self, place: "_Place") -> str:
        if place not in self._names:
            self._names[place] = self._book.new_rule()
            self._waiting.append(place)
        return self._names[place]

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
                return f"{opening} {object_inside(shape, self._book, self._rule_of_member)}"
            case ArrayShape():
                run = self._planned.runs.get(shape)
                return f"{opening} {array_inside(shape, run, self._book, self._rule_of)}"
            case _:
                return opening
