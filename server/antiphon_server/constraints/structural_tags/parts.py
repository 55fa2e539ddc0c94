"""A structural tag as a regular expression whose letters are characters and whole JSON values."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, TypeAlias, assert_never

from antiphon_server.constraints.languages.derivatives import is_empty
from antiphon_server.constraints.languages.pattern_syntax import PatternError
from antiphon_server.constraints.languages.patterns import matched
from antiphon_server.constraints.languages.terms import (
    ANY_CHAR,
    ANY_TEXT,
    EMPTY,
    Kind,
    Term,
    both,
    choice,
    complement,
    containing,
    literal,
    literals,
    of_length,
    repeat,
    sequence,
)
from antiphon_server.constraints.refusals import UnsupportedConstraintError
from antiphon_server.constraints.structural_tags.formats import (
    Dispatch,
    Expression,
    FixedText,
    Format,
    FreeText,
    InARow,
    JsonValue,
    OneOf,
    Repeated,
    Separated,
    Tag,
)

MAX_REPEAT_LOOKED_AT: Final = 100
"""Behind longer ones the library doesn't see that nothing is left of an intersection."""
_MAX_STATES: Final = 2000
"""How far it is looked for a text that an expression matches."""


@dataclass(frozen=True, slots=True)
class Text:
    """A regular language."""

    language: Term


@dataclass(frozen=True, slots=True)
class Value:
    """A JSON value.

    Attributes:
        source: Its schema. Those of equal schemas are equal, wherever they stand.
    """

    source: "ValueSource"


@dataclass(frozen=True, slots=True)
class ValueSource:
    """What a value is of; see formats.JsonValue."""

    schema: str
    max_blank: int | None


@dataclass(frozen=True, slots=True)
class Row:
    """Parts in a row; no two Texts are neighbours."""

    parts: "tuple[Part, ...]"


@dataclass(frozen=True, slots=True)
class Options:
    """Any of the parts; one Text at most."""

    parts: "tuple[Part, ...]"


@dataclass(frozen=True, slots=True)
class Again:
    """A part that isn't a Text, `low` to `high` times."""

    part: "Part"
    low: int
    high: int | None


Part: TypeAlias = Text | Value | Row | Options | Again

NO_TEXT: Final = Text(EMPTY)


def part_of(wanted: Format) -> Part:  # noqa: PLR0911 - one for each format
    """Returns the part that is a format's.

    Raises:
        UnsupportedConstraintError: an expression is none, or no text matches it.
    """
    match wanted:
        case FixedText():
            return Text(literal(wanted.text))
        case JsonValue():
            return Value(ValueSource(wanted.schema, wanted.max_blank))
        case FreeText():
            allowed = ANY_TEXT if wanted.max_chars is None else of_length(0, wanted.max_chars)
            return Text(both(allowed, _without(wanted.excludes)))
        case Expression():
            return Text(_expression(wanted))
        case InARow():
            return row(*map(part_of, wanted.elements))
        case OneOf():
            return options(*map(part_of, wanted.elements))
        case Repeated():
            return again(part_of(wanted.content), wanted.low, wanted.high)
        case Tag():
            ends = Text(literals(wanted.ends))
            return row(Text(literal(wanted.begin)), part_of(wanted.content), ends)
        case Dispatch():
            return _dispatch(wanted)
        case Separated():
            return _separated(wanted)
        case _:
            assert_never(wanted)


def row(*parts: Part) -> Part:
    """Returns the parts in a row."""
    flat: list[Part] = []
    for part in parts:
        for each in part.parts if isinstance(part, Row) else (part,):
            before = flat[-1] if flat else None
            if isinstance(each, Text) and isinstance(before, Text):
                flat[-1] = Text(sequence(before.language, each.language))
            else:
                flat.append(each)
    flat = [each for each in flat if each != NO_TEXT]
    return flat[0] if len(flat) == 1 else Row(tuple(flat)) if flat else NO_TEXT


def options(*parts: Part) -> Part:
    """Returns any of the parts."""
    flat: dict[Part, None] = {}
    languages: list[Term] = []
    for part in parts:
        for each in part.parts if isinstance(part, Options) else (part,):
            if isinstance(each, Text):
                languages.append(each.language)
            else:
                flat[each] = None
    if languages:
        flat[Text(choice(*languages))] = None
    return next(iter(flat)) if len(flat) == 1 else Options(tuple(flat))


def again(part: Part, low: int, high: int | None) -> Part:
    """Returns the part `low` to `high` times."""
    if isinstance(part, Text):
        return Text(repeat(part.language, low, high))
    if high == 0:
        return NO_TEXT
    return part if (low, high) == (1, 1) else Again(part, low, high)


def _without(excluded: Iterable[str]) -> Term:
    """The texts that have none of some texts inside."""
    texts = literals(excluded)
    return complement(containing(texts)) if excluded else ANY_TEXT


def _expression(wanted: Expression) -> Term:
    try:
        language = matched(wanted.pattern)
    except PatternError as error:
        raise UnsupportedConstraintError(
            wanted.path, f"position {error.position}: {error.message}"
        ) from error
    if not language.is_plain and longest_repeat(language) > MAX_REPEAT_LOOKED_AT:
        raise UnsupportedConstraintError(
            wanted.path,
            f"look-aheads beside repeats of more than {MAX_REPEAT_LOOKED_AT} can't be enforced "
            "inside of a tag",
        )
    if is_empty(language, max_states=_MAX_STATES):
        raise UnsupportedConstraintError(wanted.path, "no text matches it")
    return language


def longest_repeat(term: Term) -> int:
    """Returns the highest count of a language's repeats."""
    own = max(term.low, term.high or 0) if term.kind is Kind.REPEAT else 0
    return max(own, *map(longest_repeat, term.parts), 0)


def _dispatch(wanted: Dispatch) -> Part:
    triggers = literals(trigger for trigger, _ in wanted.triggers)
    last = Text(_without((*(trigger for trigger, _ in wanted.triggers), *wanted.excludes)))
    # The first trigger ends the text: none ends before that.
    early = complement(sequence(ANY_TEXT, triggers, ANY_CHAR, ANY_TEXT))
    ways = [
        row(
            Text(both(sequence(ANY_TEXT, literal(trigger)), early, _without(wanted.excludes))),
            part_of(behind),
        )
        for trigger, behind in wanted.triggers
    ]
    loop = row(again(options(*ways), 0, None), last)
    whole = loop if wanted.loops else options(last, *ways)
    return whole if wanted.first is None else row(part_of(wanted.first), whole)


def _separated(wanted: Separated) -> Part:
    element = options(*map(part_of, wanted.elements))
    if wanted.high == 1:
        return again(element, wanted.low, 1)
    more = again(row(Text(literal(wanted.separator)), element), 0, None)
    return again(row(element, more), wanted.low, 1)
