"""A grammar in the making: its rules and terminals, each under a name of its own."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from antiphon_server.constraints.json_schema.limits import PlanLimits
from antiphon_server.constraints.languages.counting import find_excess
from antiphon_server.constraints.languages.lark_text import escape_regex, string_texts
from antiphon_server.constraints.languages.terms import Term
from antiphon_server.constraints.refusals import ConstraintTooComplexError

MAX_WITHIN_LINE: Final = 1
"""White space in front of a comma, and on either side of a colon, where nobody breaks a line. A
model that loves blanks takes all that it may have, so this bounds most of what it can waste."""


@dataclass(frozen=True, slots=True)
class LarkRules:
    """Rules of a Lark grammar that can stand among others.

    Attributes:
        start: The name of the rule that all is under.
        text: The rules and terminals; every name in it begins with the prefix that was asked for.
        firsts: The characters that its texts begin with, but for white space in front.
        may_be_number: Whether a text may be a number, which more digits could make another.
        by_character: Whether its numbers are written character by character.
    """

    start: str
    text: str
    firsts: str = ""
    may_be_number: bool = False
    by_character: bool = False


class RuleBook:
    """Collects rules. Equal terminals are one."""

    def __init__(self, *, prefix: str, max_blank: int, limits: PlanLimits) -> None:
        self._prefix = prefix
        self.max_blank = max_blank
        """White-space characters that stand in front of what is defined."""
        self._limits = limits
        self._terminals: dict[str, str] = {}
        self._rules: dict[str, str] = {}
        self._size_bytes = 0
        self._num_names = 0

    @contextmanager
    def less_blank(self, most: int) -> Iterator[None]:
        """Has what is defined meanwhile begin with so much white space in front at most."""
        before, self.max_blank = self.max_blank, min(most, self.max_blank)
        yield
        self.max_blank = before

    def new_rule(self) -> str:
        """Returns the name of a rule that is still to be defined."""
        self._num_names += 1
        return f"{self._prefix}r{self._num_names}"

    def define(self, rule: str, body: str) -> None:
        """Defines a rule.

        Raises:
            ConstraintTooComplexError: the grammar has too many rules, or is too long.
        """
        self._rules[rule] = body
        self._count(body)

    def terminal(self, expression: str, *, after_blank: bool = True) -> str:
        """Returns the name of the terminal of an expression, with white space in front of it."""
        body = (self._blank() if after_blank else "") + expression
        name = self._terminals.get(body)
        if name is None:
            name = f"{self._prefix.upper()}T{len(self._terminals) + 1}"
            self._terminals[body] = name
            self._count(body)
        return name

    def fixed(self, text: str) -> str:
        """Returns the name of the terminal of one text."""
        return self.terminal(f"/{escape_regex(text)}/")

    def separator(self, text: str) -> str:
        """Returns the name of the terminal of a comma or colon."""
        with self.less_blank(MAX_WITHIN_LINE):
            return self.fixed(text)

    def string(self, language: Term) -> str:
        """Returns the JSON strings whose contents are in a language, as a part of a rule.

        Raises:
            ConstraintTooComplexError: it counts too far, or the grammar is too long.
        """
        if (excess := find_excess(language)) is not None:
            raise ConstraintTooComplexError(f"among what members' names may be, {excess}")
        texts = string_texts(language, before=self._blank())
        names = [self.terminal(text, after_blank=False) for text in texts]
        return names[0] if len(names) == 1 else f"({' | '.join(names)})"

    def name(self, language: Term) -> str:
        """Returns the same with the colon that stands behind a member's name."""
        return f"{self.string(language)} {self.separator(':')}"

    def finish(self) -> str:
        """Returns the text of all that was collected."""
        lines = [f"{name}: {body}" for name, body in self._rules.items()]
        lines.extend(f"{name}: {body}" for body, name in self._terminals.items())
        return "\n".join(lines) + "\n"

    def _blank(self) -> str:
        most = self.max_blank
        return rf"/[\x20\t\n\r]{{0,{most}}}/ " if most else ""

    def _count(self, body: str) -> None:
        self._size_bytes += len(body.encode())
        num_names = len(self._rules) + len(self._terminals)
        for value, limit, unit in (
            (num_names, self._limits.max_rules, "rules"),
            (self._size_bytes, self._limits.max_grammar_bytes, "bytes"),
        ):
            if value > limit:
                raise ConstraintTooComplexError(
                    f"the schema's grammar has more than {limit} {unit}; use a smaller schema",
                    limit=str(limit),
                )


def optional(body: str, *, is_optional: bool = True) -> str:
    """Returns a part of a rule that may be left out."""
    return f"({body})?" if is_optional else body


def times(body: str, low: int, high: int | None) -> str:
    """Returns a part of a rule that is there several times."""
    if high is not None and high <= 0:
        return ""
    low = max(low, 0)
    if low == 0 and high is None:
        return f"({body})*"
    if (low, high) == (1, 1):
        return body
    return f"({body}){{{low},{'' if high is None else high}}}"
