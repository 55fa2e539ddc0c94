"""Objects as rules: known members in order, each there or left out, then others."""

from collections.abc import Callable

from antiphon_server.constraints.json_schema.goals import Goal
from antiphon_server.constraints.json_schema.lark_rules import RuleBook, optional, times
from antiphon_server.constraints.json_schema.shapes import ObjectShape, OtherMembers
from antiphon_server.constraints.languages.terms import literal

RuleOf = Callable[[Goal], str]


def object_inside(shape: ObjectShape, book: RuleBook, rule_of: RuleOf) -> str:
    """Returns what is behind an object's opening bracket as a part of a rule."""
    writer = _ObjectWriter(shape, book, rule_of)
    is_counted = shape.low > 0 or shape.high is not None
    inside = writer.counted() if is_counted else writer.uncounted()
    return f"{inside} {book.fixed('}')}"


class _ObjectWriter:
    def __init__(self, shape: ObjectShape, book: RuleBook, rule_of: RuleOf) -> None:
        self._book = book
        self._shape = shape
        self._comma = book.separator(",")
        self._members = [
            f"{book.name(literal(member.name))} {rule_of(member.goal)}" for member in shape.members
        ]
        self._required = [member.is_required for member in shape.members]
        others = [self._other(each, rule_of) for each in shape.others]
        self._others = f"({' | '.join(others)})" if others else None
        self._last = None if shape.last is None else self._other(shape.last, rule_of)

    def _other(self, others: OtherMembers, rule_of: RuleOf) -> str:
        return f"{self._book.name(others.names)} {rule_of(others.goal)}"

    def uncounted(self) -> str:
        """The members where any number will do.

        The first member has no comma in front, and it may be any up to the first required one.
        """
        num_members = len(self._members)
        first_required = next(
            (index for index in range(num_members) if self._required[index]), num_members
        )
        if first_required == num_members:
            behind = self._new_rule(self._others_behind())
            options = self._first_others()
        else:
            behind = self._new_rule(self._flat_behind(first_required + 1))
            options = [f"{self._members[first_required]} {behind}"]
            behind = self._new_rule(f"{self._comma} {options[0]}")
        for index in reversed(range(first_required)):
            options.append(f"{self._members[index]} {behind}")
            if index:
                skipped = optional(f"{self._comma} {self._members[index]}")
                behind = self._new_rule(f"{skipped} {behind}")
        return self._new_rule(" | ".join(reversed(options)))

    def _first_others(self) -> list[str]:
        """What an object without known members may have; an empty text: nothing."""
        more = "" if self._others is None else times(f"{self._comma} {self._others}", 0, None)
        if self._last is not None:
            before = "" if self._others is None else times(f"{self._others} {self._comma}", 0, None)
            return [f"{before} {self._last}"]
        return ['""'] if self._others is None else ['""', f"{self._others} {more}"]

    def _others_behind(self) -> str:
        more = "" if self._others is None else times(f"{self._comma} {self._others}", 0, None)
        return f"{more} {self._comma} {self._last}" if self._last else more or '""'

    def _flat_behind(self, index: int) -> str:
        members = [
            optional(f"{self._comma} {member}", is_optional=not is_required)
            for member, is_required in zip(
                self._members[index:], self._required[index:], strict=True
            )
        ]
        return " ".join([*members, self._others_behind()])

    def _new_rule(self, body: str) -> str:
        rule = self._book.new_rule()
        self._book.define(rule, body)
        return rule

    def counted(self) -> str:
        """The members where their number matters: a rule for each index and number so far."""
        rules: dict[tuple[int, int], str] = {}
        for index, count in sorted(self._counts(), reverse=True):
            options = (
                self._counted_end(count)
                if index == len(self._members)
                else self._counted_options(index, count, rules)
            )
            if options:
                rules[index, count] = self._new_rule(" | ".join(options))
        return rules.get((0, 0), '""')

    def _counts(self) -> set[tuple[int, int]]:
        """The indices with the numbers of members that there may be before them."""
        found = {(0, 0)}
        counts = {0}
        for index, is_required in enumerate(self._required):
            taken = {self._capped(count + 1) for count in counts if self._is_within(count + 1)}
            counts = taken if is_required else taken | counts
            found |= {(index + 1, count) for count in counts}
        return found

    def _counted_options(
        self, index: int, count: int, rules: dict[tuple[int, int], str]
    ) -> list[str]:
        """What may follow; nothing: the object can't be ended any more."""
        options = []
        taken = rules.get((index + 1, self._capped(count + 1)))
        if self._is_within(count + 1) and taken is not None:
            comma = f"{self._comma} " if count else ""
            options.append(f"{comma}{self._members[index]} {taken}")
        skipped = rules.get((index + 1, count))
        if not self._required[index] and skipped is not None:
            options.append(skipped)
        return options

    def _counted_end(self, count: int) -> list[str]:
        """What may follow behind the last known member."""
        low, high = self._shape.low, self._shape.high
        num_last = int(self._last is not None)
        missing = max(low - count - num_last, 0)
        room = None if high is None else high - count - num_last
        if (room is not None and room < missing) or (missing and self._others is None):
            return []
        if count:
            body = times(f"{self._comma} {self._others}", missing, room) if self._others else ""
            return [f"{body} {self._comma} {self._last}" if self._last else body or '""']
        if self._last is not None:
            body = times(f"{self._others} {self._comma}", missing, room) if self._others else ""
            return [f"{body} {self._last}"]
        options = [] if missing else ['""']
        if self._others is not None and (room is None or room > 0):
            left = None if room is None else room - 1
            more = times(f"{self._comma} {self._others}", missing - 1, left)
            options.append(f"{self._others} {more}")
        return options

    def _is_within(self, count: int) -> bool:
        high = self._shape.high
        return high is None or count + int(self._last is not None) <= high

    def _capped(self, count: int) -> int:
        """Numbers that make no difference any more are one."""
        return count if self._shape.high is not None else min(count, max(self._shape.low, 1))
