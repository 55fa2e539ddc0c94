"""Arrays as rules."""

from collections.abc import Callable

from antiphon_server.constraints.json_schema.array_runs import ArrayRun
from antiphon_server.constraints.json_schema.goals import Goal
from antiphon_server.constraints.json_schema.lark_rules import RuleBook, optional, times
from antiphon_server.constraints.json_schema.shapes import ArrayShape

RuleOf = Callable[[Goal], str]


def array_inside(shape: ArrayShape, run: ArrayRun | None, book: RuleBook, rule_of: RuleOf) -> str:
    """Returns what is behind an array's opening bracket as a part of a rule."""
    inside = _listed(shape, book, rule_of) if run is None else _run(run, book, rule_of)
    return f"{inside} {book.fixed(']')}"


def _listed(shape: ArrayShape, book: RuleBook, rule_of: RuleOf) -> str:
    """The first items one by one, then as many others as there may be."""
    comma = book.separator(",")
    num_first = len(shape.first)
    has_rest = shape.high is None or shape.high > num_first
    inside = ""
    if has_rest:
        high = None if shape.high is None else shape.high - num_first
        rest = rule_of(shape.rest)
        if num_first == 0:
            more = times(f"{comma} {rest}", shape.low - 1, None if high is None else high - 1)
            return optional(f"{rest} {more}", is_optional=shape.low == 0)
        inside = times(f"{comma} {rest}", shape.low - num_first, high)
    for index in reversed(range(num_first)):
        separator = f"{comma} " if index else ""
        inside = optional(
            f"{separator}{rule_of(shape.first[index])} {inside}", is_optional=index >= shape.low
        )
    return inside


def _run(run: ArrayRun, book: RuleBook, rule_of: RuleOf) -> str:
    """A rule for each state, of all that may follow; the first item has no comma in front."""
    comma = book.separator(",")
    rules = [book.new_rule() for _ in run.edges]
    for state, edges in enumerate(run.edges):
        options = [f"{comma} {rule_of(edge.goal)} {rules[edge.target]}" for edge in edges]
        if state in run.ends:
            options.append('""')
        if options:
            book.define(rules[state], " | ".join(options))
    start = book.new_rule()
    options = [f"{rule_of(edge.goal)} {rules[edge.target]}" for edge in run.edges[0]]
    if 0 in run.ends:
        options.append('""')
    book.define(start, " | ".join(options))
    return start
