"""The keywords of numbers and strings."""

from collections.abc import Callable
from decimal import Decimal
from typing import Final

from antiphon_server.constraints.json_schema.formats import format_language
from antiphon_server.constraints.json_schema.goals import (
    NUMBER,
    STRING,
    Above,
    Below,
    Multiple,
    Option,
    Part,
    Scopes,
    TextIn,
    Workings,
)
from antiphon_server.constraints.json_schema.keyword import Keyword, of_type
from antiphon_server.constraints.json_schema.schema_node import SchemaNode
from antiphon_server.constraints.languages.counting import MAX_LENGTH, find_excess
from antiphon_server.constraints.languages.pattern_syntax import (
    ECMA_262,
    EVERY_READER,
    PatternError,
    Readings,
)
from antiphon_server.constraints.languages.patterns import searched
from antiphon_server.constraints.languages.terms import ANY_TEXT, Term, complement, of_length
from antiphon_server.constraints.refusals import shown

_LONGEST_OUTPUT: Final = 1 << 24
"""Characters. No output has more, so a bound beyond it bounds nothing."""
_MAX_DIGITS: Final = 20


def _number(node: SchemaNode, keyword: str) -> Decimal:
    value = node.get(keyword)
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        node.refuse(keyword, "this must be a number")
    return Decimal(value)


def _lowest(node: SchemaNode) -> list[Above]:
    bounds = []
    exclusive = node.get("exclusiveMinimum")
    if node.has("minimum"):
        bounds.append(Above(_number(node, "minimum"), strictly=exclusive is True))
    if node.has("exclusiveMinimum") and not isinstance(exclusive, bool):
        bounds.append(Above(_number(node, "exclusiveMinimum"), strictly=True))
    return bounds


def _highest(node: SchemaNode) -> list[Below]:
    bounds = []
    exclusive = node.get("exclusiveMaximum")
    if node.has("maximum"):
        bounds.append(Below(_number(node, "maximum"), strictly=exclusive is True))
    if node.has("exclusiveMaximum") and not isinstance(exclusive, bool):
        bounds.append(Below(_number(node, "exclusiveMaximum"), strictly=True))
    return bounds


def _range_holds(node: SchemaNode, _workings: Workings, _scopes: Scopes) -> tuple[Part, ...]:
    return (*_lowest(node), *_highest(node))


def _range_fails(node: SchemaNode, _workings: Workings) -> tuple[Option, ...]:
    under: list[Part] = [Below(each.bound, strictly=not each.strictly) for each in _lowest(node)]
    over: list[Part] = [Above(each.bound, strictly=not each.strictly) for each in _highest(node)]
    return tuple((of_type(NUMBER), each) for each in (*under, *over))


def _multiple(node: SchemaNode, *, holds: bool) -> Multiple:
    step = _number(node, "multipleOf")
    if step <= 0:
        node.refuse("multipleOf", "this must be above 0")
    return Multiple(step, holds, f"{node.pointer}/multipleOf")


def _multiple_holds(node: SchemaNode, _workings: Workings, _scopes: Scopes) -> tuple[Part, ...]:
    return (_multiple(node, holds=True),)


def _multiple_fails(node: SchemaNode, _workings: Workings) -> tuple[Option, ...]:
    return ((of_type(NUMBER), _multiple(node, holds=False)),)


def _length(node: SchemaNode) -> Term:
    low, high = node.count("minLength") or 0, node.count("maxLength")
    if high is not None and high > _LONGEST_OUTPUT:
        high = None
    for keyword, length in (("minLength", low), ("maxLength", high)):
        if length is not None and length > MAX_LENGTH:
            node.refuse(
                keyword,
                f"is {str(length)[:_MAX_DIGITS]}, and at most {MAX_LENGTH} characters can be"
                " counted; lower it, or leave it out",
            )
    return of_length(low, high)


def _pattern(node: SchemaNode, readings: Readings = ECMA_262) -> Term:
    pattern = node.get("pattern")
    if not isinstance(pattern, str):
        node.refuse("pattern", "this must be a string")
    return pattern_language(node, "pattern", pattern, readings=readings)


def _written_pattern(node: SchemaNode) -> Term:
    # U+FEFF is a blank to ECMA-262 alone: other validators would find the output at fault.
    return _pattern(node, EVERY_READER)


def _format(node: SchemaNode) -> Term:
    name = node.get("format")
    if not isinstance(name, str) or not node.dialect.asserts_formats:
        return ANY_TEXT
    language = format_language(name)
    if language is None:
        node.refuse("format", f"the format {shown(name)} can't be enforced; use a pattern")
    return language


def pattern_language(
    node: SchemaNode, keyword: str, pattern: str, *, readings: Readings = ECMA_262
) -> Term:
    """Returns the strings in which a pattern is found, for each of some readings.

    Raises:
        UnsupportedConstraintError: it can't be enforced.
    """
    try:
        language = searched(pattern, readings=readings)
    except PatternError as error:
        node.refuse(keyword, f"the pattern {shown(pattern)} can't be enforced: {error}")
    if (excess := find_excess(language)) is not None:
        node.refuse(keyword, f"the pattern {shown(pattern)} can't be enforced: {excess}")
    return language


def _of_texts(
    names: tuple[str, ...],
    language: Callable[[SchemaNode], Term],
    *,
    written: Callable[[SchemaNode], Term] | None = None,
) -> Keyword:
    """A keyword of strings; `written` are those of its language that outputs may be, if not all."""

    def holds(node: SchemaNode, _workings: Workings, _scopes: Scopes) -> tuple[Part, ...]:
        return (TextIn((written or language)(node), f"{node.pointer}/{names[-1]}"),)

    def fails(node: SchemaNode, _workings: Workings) -> tuple[Option, ...]:
        path = f"{node.pointer}/{names[-1]}"
        return ((of_type(STRING), TextIn(complement(language(node)), path)),)

    return Keyword(names, holds, fails)


SCALAR_KEYWORDS: Final = (
    Keyword(
        ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), _range_holds, _range_fails
    ),
    Keyword(("multipleOf",), _multiple_holds, _multiple_fails),
    _of_texts(("minLength", "maxLength"), _length),
    _of_texts(("pattern",), _pattern, written=_written_pattern),
    _of_texts(("format",), _format),
)
