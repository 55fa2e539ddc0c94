"""Numbers as terminals, or character by character where remainders have to be kept.

A grammar has one or the other throughout: the library takes the longest terminal that matches, so
a digit is never taken alone where a whole number may stand at the same place.
"""

from antiphon_server.constraints.json_schema.lark_rules import RuleBook
from antiphon_server.constraints.json_schema.number_runs import NumberRun, NumberState, number_run
from antiphon_server.constraints.json_schema.shapes import NumberShape
from antiphon_server.constraints.languages.lark_text import escape_regex, plain_text


def number_body(shape: NumberShape, book: RuleBook, *, by_character: bool) -> str:
    """Returns the number as a part of a rule; rules that it needs are defined.

    Raises:
        ConstraintTooComplexError: it takes too many rules.
    """
    run = number_run(shape) if by_character else None
    return book.terminal(plain_text(shape.texts)) if run is None else _run_body(run, book)


def _run_body(run: NumberRun, book: RuleBook) -> str:
    rules = {state: book.new_rule() for state in run.edges}
    for state, edges in run.edges.items():
        by_target: dict[NumberState, list[str]] = {}
        for sign, target in edges:
            by_target.setdefault(target, []).append(escape_regex(sign))
        options = []
        for target, signs in by_target.items():
            digit = book.terminal(f"/[{''.join(signs)}]/", after_blank=state == run.start)
            options.append(f"{digit} {rules[target]}")
        if state in run.ends:
            options.append('""')
        book.define(rules[state], " | ".join(options))
    return rules[run.start]
