"""From a structural tag's text to the grammar that enforces it exactly."""

from collections.abc import Iterator, Mapping

from antiphon_engine.api.grammar import Grammar, GrammarBackend
from antiphon_server.constraints.json_schema.lark_rules import LarkRules
from antiphon_server.constraints.json_schema.limits import PlanLimits
from antiphon_server.constraints.json_schema.plan import schema_rules
from antiphon_server.constraints.refusals import UnsupportedConstraintError
from antiphon_server.constraints.structural_tags.boundaries import Boundaries
from antiphon_server.constraints.structural_tags.document import read_tag
from antiphon_server.constraints.structural_tags.formats import (
    Dispatch,
    Format,
    InARow,
    JsonValue,
    OneOf,
    Repeated,
    Separated,
    Tag,
)
from antiphon_server.constraints.structural_tags.lark import write_grammar
from antiphon_server.constraints.structural_tags.parts import Part, ValueSource, part_of
from antiphon_server.constraints.structural_tags.prefixes import Taker


def plan_tag(text: str, *, max_blank: int, limits: PlanLimits) -> Grammar:
    """Returns the grammar of exactly the texts that a structural tag allows.

    Args:
        text: The structural tag.
        max_blank: White-space characters in a row that are allowed between JSON's tokens; 0: none.
        limits: What is too complex.

    Raises:
        UnsupportedConstraintError: names the part that can't be enforced or isn't known.
        ConstraintTooComplexError: a limit is passed.
    """
    wanted = read_tag(text, limits)
    paths: dict[ValueSource, str] = {}
    values: dict[ValueSource, LarkRules] = {}
    for value in _values_in(wanted):
        source = ValueSource(value.schema, value.max_blank)
        if source not in paths:
            paths[source] = value.path
            blank = max_blank if value.max_blank is None else min(value.max_blank, max_blank)
            values[source] = _rules_of(value, f"v{len(values)}_", blank, limits)
    start = part_of(wanted)
    taker = _checked_taker(start, values, paths)
    return Grammar(
        backend=GrammarBackend.LLGUIDANCE,
        text=write_grammar(start, taker, values),
    )


def _checked_taker(
    start: Part, values: Mapping[ValueSource, LarkRules], paths: Mapping[ValueSource, str]
) -> Taker:
    """Returns what takes the part apart so that its boundaries hold; the cheapest comes first."""
    refusal: UnsupportedConstraintError | None = None
    for cuts in (True, False):
        for counts in (False, True):
            taker = Taker(cuts=cuts)
            try:
                Boundaries(taker, values, paths, counts=counts).check(start)
            except UnsupportedConstraintError as error:
                refusal = error
            else:
                return taker
    assert refusal is not None
    raise refusal


def _rules_of(value: JsonValue, prefix: str, max_blank: int, limits: PlanLimits) -> LarkRules:
    try:
        return schema_rules(
            value.schema,
            prefix=prefix,
            max_blank=max_blank,
            limits=limits,
            begins_with_blank=False,
        )
    except UnsupportedConstraintError as error:
        raise UnsupportedConstraintError(f"{value.path}#{error.path}", error.message) from error


def _values_in(wanted: Format) -> Iterator[JsonValue]:
    match wanted:
        case JsonValue():
            yield wanted
        case InARow() | OneOf() | Separated():
            for element in wanted.elements:
                yield from _values_in(element)
        case Repeated() | Tag():
            yield from _values_in(wanted.content)
        case Dispatch():
            for _, behind in wanted.triggers:
                yield from _values_in(behind)
            if wanted.first is not None:
                yield from _values_in(wanted.first)
        case _:
            return
