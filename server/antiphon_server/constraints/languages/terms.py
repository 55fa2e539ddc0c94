"""Regular languages as values. Equal values are equal languages; the reverse isn't promised."""

import enum
import re
from collections.abc import Iterable
from typing import Final

from antiphon_server.constraints.languages import charsets
from antiphon_server.constraints.languages.charsets import CharSet

_SURROGATE: Final = re.compile("[\ud800-\udfff]")


class Kind(enum.Enum):
    """How a language is put together."""

    CHARS = "chars"
    """One character of a set."""
    TEXT = "text"
    """One text, of two characters or more."""
    SEQUENCE = "sequence"
    """The parts in a row; none: the empty text."""
    CHOICE = "choice"
    """Any of the parts; none: no text at all."""
    BOTH = "both"
    """All of the parts."""
    COMPLEMENT = "complement"
    """Every text that the part doesn't have."""
    REPEAT = "repeat"
    """The part between `low` and `high` times."""


class Term:
    """A regular language. Made by the functions below, which simplify."""

    __slots__ = (
        "_hash", "_unordered", "chars", "derivatives", "high", "is_plain", "kind", "low",
        "nullable", "parts", "text",
    )  # fmt: skip

    def __init__(
        self,
        kind: Kind,
        parts: tuple["Term", ...] = (),
        *,
        chars: CharSet = (),
        text: str = "",
        bounds: tuple[int, int | None] = (0, None),
    ) -> None:
        self.kind = kind
        self.parts = parts
        self.chars = chars
        self.text = text
        self.low, self.high = bounds
        self.nullable = _nullable(kind, parts, self.low)
        self.is_plain: bool = kind not in (Kind.BOTH, Kind.COMPLEMENT) and all(
            part.is_plain for part in parts
        )
        self.derivatives: dict[int, Term] = {}
        self._unordered = frozenset(parts) if kind in (Kind.CHOICE, Kind.BOTH) else None
        self._hash = hash((kind, self._unordered or parts, chars, text, bounds))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Term) or self._hash != other._hash or self.kind != other.kind:
            return False
        if (self.chars, self.text, self.low, self.high) != (
            other.chars, other.text, other.low, other.high,
        ):  # fmt: skip
            return False
        if self._unordered is not None:
            return self._unordered == other._unordered
        return self.parts == other.parts


def _nullable(kind: Kind, parts: tuple[Term, ...], low: int) -> bool:
    match kind:
        case Kind.CHARS | Kind.TEXT:
            return False
        case Kind.CHOICE:
            return any(part.nullable for part in parts)
        case Kind.COMPLEMENT:
            return not parts[0].nullable
        case Kind.REPEAT:
            return low == 0 or parts[0].nullable
        case _:
            return all(part.nullable for part in parts)


NOTHING: Final = Term(Kind.CHOICE)
"""No text."""
EMPTY: Final = Term(Kind.SEQUENCE)
"""The empty text."""
ANY_CHAR: Final = Term(Kind.CHARS, chars=charsets.ALL)
ANY_TEXT: Final = Term(Kind.REPEAT, (ANY_CHAR,))


def one_of(chars: CharSet) -> Term:
    """Returns the texts of one character of the set."""
    return Term(Kind.CHARS, chars=chars) if chars else NOTHING


def literal(text: str) -> Term:
    """Returns the language of one text; of a lone surrogate, which can't be written: NOTHING."""
    if _SURROGATE.search(text):
        return NOTHING
    if len(text) < 2:
        return one_of(((ord(text), ord(text)),)) if text else EMPTY
    return Term(Kind.TEXT, text=text)


def fixed_text(term: Term) -> str | None:
    """Returns the text of a language that is put together of one; None: it isn't."""
    if term.kind is Kind.TEXT:
        return term.text
    if term.kind is Kind.CHARS and len(term.chars) == 1 and term.chars[0][0] == term.chars[0][1]:
        return chr(term.chars[0][0])
    return None


def literals(texts: Iterable[str]) -> Term:
    """Returns the language of some texts, common beginnings shared."""
    by_first: dict[str, list[str]] = {}
    has_empty = False
    for text in sorted(set(texts)):
        if text:
            by_first.setdefault(text[0], []).append(text)
        else:
            has_empty = True
    branches = [EMPTY] if has_empty else []
    for group in by_first.values():
        shared = _shared_beginning(group[0], group[-1])
        if len(group) == 1:
            branches.append(literal(shared))
        else:
            branches.append(
                sequence(literal(shared), literals(text[len(shared) :] for text in group))
            )
    return choice(*branches)


def sequence(*parts: Term) -> Term:
    """Returns the texts that are made of one text of each part, in order."""
    flat: list[Term] = []
    for part in parts:
        if part.kind is Kind.CHOICE and not part.parts:
            return NOTHING
        for each in part.parts if part.kind is Kind.SEQUENCE else (part,):
            if each == ANY_TEXT:
                while flat and flat[-1].nullable:
                    flat.pop()  # Any text is all that it may be, too.
            elif flat and flat[-1] == ANY_TEXT and each.nullable:
                continue
            text = fixed_text(each)
            before = fixed_text(flat[-1]) if flat and text is not None else None
            if text is not None and before is not None:
                flat[-1] = literal(before + text)
            else:
                flat.append(each)
    return flat[0] if len(flat) == 1 else Term(Kind.SEQUENCE, tuple(flat))


def choice(*parts: Term) -> Term:
    """Returns the texts of any of the parts."""
    flat: dict[Term, None] = {}
    chars: list[CharSet] = []
    for part in parts:
        for each in part.parts if part.kind is Kind.CHOICE else (part,):
            if each == ANY_TEXT:
                return ANY_TEXT
            if each.kind is Kind.CHARS:
                chars.append(each.chars)
            else:
                flat[each] = None
    if chars:
        flat[one_of(charsets.union(*chars))] = None
    if len(flat) == 1:
        return next(iter(flat))
    return Term(Kind.CHOICE, tuple(flat)) if flat else NOTHING


def both(*parts: Term) -> Term:
    """Returns the texts that are in all of the parts."""
    flat: dict[Term, None] = {}
    for part in parts:
        for each in part.parts if part.kind is Kind.BOTH else (part,):
            if each != ANY_TEXT:
                flat[each] = None
    if NOTHING in flat:
        return NOTHING
    if EMPTY in flat:
        return EMPTY if all(each.nullable for each in flat) else NOTHING
    if any(complement(each) in flat for each in flat):
        return NOTHING
    if len(flat) == 1:
        return next(iter(flat))
    return _in_all(tuple(flat)) if flat else ANY_TEXT


def complement(part: Term) -> Term:
    """Returns the texts that are not in the part."""
    if part.kind is Kind.COMPLEMENT:
        return part.parts[0]
    if part == NOTHING:
        return ANY_TEXT
    if part == ANY_TEXT:
        return NOTHING
    return Term(Kind.COMPLEMENT, (part,))


def repeat(part: Term, low: int, high: int | None) -> Term:
    """Returns the texts made of `low` to `high` texts of the part, in a row; None: any number."""
    if part.nullable:
        low = 0
    if high is not None and high < low:
        return NOTHING
    if high == 0 or part == EMPTY:
        return EMPTY
    if part == NOTHING:
        return EMPTY if low == 0 else NOTHING
    if low == 1 and high == 1:
        return part
    if part.kind is Kind.REPEAT and _leave_no_gap(part.low, part.high, low, high):
        most = None if part.high is None or high is None else part.high * high
        return repeat(part.parts[0], part.low * low, most)
    return Term(Kind.REPEAT, (part,), bounds=(low, high))


def optional(part: Term) -> Term:
    """Returns the texts of the part, and the empty one."""
    return repeat(part, 0, 1)


def containing(part: Term) -> Term:
    """Returns the texts that have a text of the part somewhere."""
    return sequence(ANY_TEXT, part, ANY_TEXT)


def of_length(low: int, high: int | None) -> Term:
    """Returns the texts of `low` to `high` characters."""
    return repeat(ANY_CHAR, low, high)


def _in_all(parts: tuple[Term, ...]) -> Term:
    """Returns the texts that are in all of some parts, two or more that differ."""
    if all(each.kind is Kind.CHARS for each in parts):
        return one_of(_common_chars(parts))
    runs = [each for each in parts if each.kind is Kind.REPEAT and each.parts[0].kind is Kind.CHARS]
    if len(runs) > 1:
        return both(_common_run(runs), *(each for each in parts if each not in runs))
    return Term(Kind.BOTH, parts)


def _leave_no_gap(inner_low: int, inner_high: int | None, low: int, high: int | None) -> bool:
    """Whether `low` to `high` repetitions of so many are repetitions of any number in between."""
    fewest = max(low, 1)
    if low == 0 and inner_low > 1:
        return False
    if inner_high is None or fewest == high:
        return True
    return fewest * inner_high + 1 >= (fewest + 1) * inner_low


def _common_run(runs: Iterable[Term]) -> Term:
    """Returns the texts that are in all of some languages, each of a set's characters so often."""
    low, high, chars = 0, None, charsets.ALL
    for run in runs:
        low = max(low, run.low)
        high = run.high if high is None else min(high, run.high or high)
        chars = charsets.intersection(chars, run.parts[0].chars)
    return repeat(one_of(chars), low, high)


def _common_chars(terms: Iterable[Term]) -> CharSet:
    common = charsets.ALL
    for term in terms:
        common = charsets.intersection(common, term.chars)
    return common


def _shared_beginning(one: str, other: str) -> str:
    num_shared = 0
    while num_shared < min(len(one), len(other)) and one[num_shared] == other[num_shared]:
        num_shared += 1
    return one[:num_shared]
