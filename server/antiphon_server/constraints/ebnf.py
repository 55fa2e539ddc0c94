"""EBNF grammars: whether every rule has an end.

The backend reads grammars itself and says where one is broken. It takes rules that only lead back
into themselves, though, and outputs that enter one can never be completed.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from antiphon_server.constraints.refusals import (
    ConstraintTooComplexError,
    UnsupportedConstraintError,
)

_TOKEN: Final = re.compile(
    r"""
    (?P<blank>[ \t\r\n]+|\#[^\n]*)
    |(?P<rule>[A-Za-z_][A-Za-z0-9_.-]*)[ \t\r\n]*::=
    |(?P<name>[A-Za-z_][A-Za-z0-9_.-]*)
    |(?P<text>"(?:\\.|[^"\\\n])*"|\[(?:\\.|[^\]\\\n])*\])
    |(?P<repeat>[*+?]|\{[ ]*\d+[ ]*(?:,[ ]*\d*[ ]*)?\})
    |(?P<mark>[()|])
    """,
    re.VERBOSE,
)
_ROOT: Final = "root"
MAX_COUNT: Final = (1 << 31) - 1
"""Of a repetition. The backend takes higher ones for what is left of them in 32 bits."""


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    start: int


@dataclass(frozen=True, slots=True)
class _Group:
    """Ways to go on; each is a row of parts that all have to end."""

    ways: "list[list[_Part]]"


@dataclass(frozen=True, slots=True)
class _Part:
    """A rule's name, or a group, in a row."""

    item: str | _Group
    may_be_left: bool
    """Whether the row is whole without it."""


def check_rules_end(text: str, *, max_depth: int) -> None:
    """Checks that an output that enters any rule can be completed.

    Raises:
        UnsupportedConstraintError: one can't, there is no root, or something is not known here;
            names the place.
        ConstraintTooComplexError: groups are nested too deeply.
    """
    tokens = list(_tokens(text))
    rules: dict[str, _Group] = {}
    places: dict[str, int] = {}
    starts = [index for index, token in enumerate(tokens) if token.kind == "rule"]
    if starts[:1] != [0]:
        place = place_in(text, tokens[0].start if tokens else 0)
        raise UnsupportedConstraintError(place, "must begin a rule, such as 'root'")
    for start, end in zip(starts, [*starts[1:], len(tokens)], strict=True):
        name = tokens[start].text
        if name in rules:
            raise UnsupportedConstraintError(
                place_in(text, tokens[start].start), f"the rule {name!r} is there already"
            )
        reader = _RuleReader(text, tokens[start + 1 : end], max_depth=max_depth)
        rules[name], places[name] = reader.read(), tokens[start].start
    if _ROOT not in rules:
        raise UnsupportedConstraintError(place_in(text, 0), "there is no rule 'root' to start with")
    # Also of rules that nothing leads to: the backend reads them all, and may never come back.
    endless = rules.keys() - _ending(rules)
    if endless:
        name = min(endless, key=places.__getitem__)
        message = f"the rule {name!r} has no end: every way through it leads into it again"
        raise UnsupportedConstraintError(place_in(text, places[name]), message)


def place_in(text: str, offset: int) -> str:
    """Returns where an offset is, for people."""
    before = text[:offset]
    line = before.count("\n") + 1
    return f"line {line}, column {offset - (before.rfind(chr(10)) + 1) + 1}"


def _tokens(text: str) -> Iterator[_Token]:
    offset = 0
    while offset < len(text):
        match = _TOKEN.match(text, offset)
        if match is None:
            what = "this text has no end" if text[offset] in '"[' else "is not known"
            raise UnsupportedConstraintError(
                place_in(text, offset), f"{text[offset : offset + 1]!r}: {what}"
            )
        kind = match.lastgroup
        assert kind is not None
        if kind != "blank":
            yield _Token(kind, match.group(kind), offset)
        offset = match.end()


class _RuleReader:
    """Reads what stands behind a rule's `::=`."""

    def __init__(self, text: str, tokens: Sequence[_Token], *, max_depth: int) -> None:
        self._text = text
        self._tokens = tokens
        self._next = 0
        self._max_depth = max_depth

    def read(self) -> _Group:
        """Returns it. Raises UnsupportedConstraintError or ConstraintTooComplexError."""
        group = self._read_group(0)
        if self._next < len(self._tokens):
            token = self._tokens[self._next]
            raise UnsupportedConstraintError(
                place_in(self._text, token.start), f"{token.text!r} has nothing to close"
            )
        return group

    def _read_group(self, depth: int) -> _Group:
        if depth > self._max_depth:
            raise ConstraintTooComplexError(
                f"its groups are nested more than {self._max_depth} deep; make it flatter",
                limit=str(self._max_depth),
            )
        group = _Group([[]])
        while self._next < len(self._tokens):
            token = self._tokens[self._next]
            if token.text == ")" and token.kind == "mark":
                break
            self._next += 1
            if token.kind == "mark" and token.text == "|":
                group.ways.append([])
            elif token.kind == "repeat":
                raise UnsupportedConstraintError(
                    place_in(self._text, token.start), f"{token.text!r} has nothing to repeat"
                )
            elif token.kind == "text":
                self._may_be_left()  # It ends by itself, however often.
            else:
                item = token.text if token.kind == "name" else self._read_inner(token, depth)
                group.ways[-1].append(_Part(item, self._may_be_left()))
        return group

    def _read_inner(self, token: _Token, depth: int) -> _Group:
        """Returns the group that a parenthesis opens."""
        inner = self._read_group(depth + 1)
        if self._next == len(self._tokens):
            raise UnsupportedConstraintError(
                place_in(self._text, token.start), "this group has no end"
            )
        self._next += 1
        return inner

    def _may_be_left(self) -> bool:
        """Takes a repetition that follows, and says whether it may be of nothing.

        Raises UnsupportedConstraintError: it counts too far.
        """
        if self._next == len(self._tokens) or self._tokens[self._next].kind != "repeat":
            return False
        token = self._tokens[self._next]
        self._next += 1
        if token.text[0] != "{":
            return token.text in "*?"
        low, _, high = token.text[1:-1].partition(",")
        counts = self._count(low, token), self._count(high, token)
        return counts[0] == 0

    def _count(self, text: str, token: _Token) -> int:
        """Returns a bound of a repetition; 0 where there is none."""
        digits = text.strip().lstrip("0") or "0"
        if len(digits) > len(str(MAX_COUNT)) or int(digits) > MAX_COUNT:
            raise UnsupportedConstraintError(
                place_in(self._text, token.start),
                f"it counts to {digits[:20]}, and at most {MAX_COUNT} can be counted here; use a "
                "lower bound",
            )
        return int(digits)


def _ending(rules: dict[str, _Group]) -> set[str]:
    """Returns the rules that have an end. One that isn't there is the backend's to tell."""
    ending: set[str] = set()

    def ends(item: str | _Group) -> bool:
        if isinstance(item, str):
            return item in ending or item not in rules
        return any(all(part.may_be_left or ends(part.item) for part in way) for way in item.ways)

    while new := {name for name, group in rules.items() if name not in ending and ends(group)}:
        ending |= new
    return ending
