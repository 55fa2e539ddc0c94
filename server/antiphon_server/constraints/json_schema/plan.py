"""From a JSON Schema's text to the grammar that enforces it exactly."""

from antiphon_engine.api.grammar import Grammar, GrammarBackend
from antiphon_server.constraints.json_schema.dialect import dialect_of
from antiphon_server.constraints.json_schema.document import parse_document, refuse_halves
from antiphon_server.constraints.json_schema.goals import goal_of
from antiphon_server.constraints.json_schema.lark_grammar import write_grammar
from antiphon_server.constraints.json_schema.lark_rules import LarkRules, RuleBook
from antiphon_server.constraints.json_schema.limits import Budget, PlanLimits
from antiphon_server.constraints.json_schema.plan_shapes import PlannedShapes
from antiphon_server.constraints.json_schema.references import References
from antiphon_server.constraints.json_schema.workings import GoalWorkings
from antiphon_server.constraints.refusals import (
    ConstraintTooComplexError,
    UnsupportedConstraintError,
)


def plan_schema(text: str, *, max_blank: int, limits: PlanLimits) -> Grammar:
    """Returns the grammar of exactly the texts of the schema's instances.

    Args:
        text: The schema.
        max_blank: White-space characters in a row that are allowed outside of strings; 0: none.
        limits: What is too complex.

    Raises:
        UnsupportedConstraintError: names the part that can't be enforced or isn't valid.
        ConstraintTooComplexError: a limit is passed.
    """
    rules = schema_rules(text, prefix="", max_blank=max_blank, limits=limits)
    return Grammar(
        backend=GrammarBackend.LLGUIDANCE,
        text=f"start: {rules.start}\n{rules.text}",
    )


def schema_rules(
    text: str, *, prefix: str, max_blank: int, limits: PlanLimits, begins_with_blank: bool = True
) -> LarkRules:
    """Returns the same as rules that can stand in a larger grammar.

    Args:
        text: The schema.
        prefix: What every name of the rules begins with: lower-case letters, digits and
            underscores, a letter first.
        max_blank: White-space characters in a row that are allowed outside of strings; 0: none.
        limits: What is too complex.
        begins_with_blank: Whether white space may stand in front of a whole instance, too.

    Raises:
        UnsupportedConstraintError: names the part that can't be enforced or isn't valid.
        ConstraintTooComplexError: a limit is passed.
    """
    schema = parse_document(text, limits)
    refuse_halves(schema)
    if not isinstance(schema, dict | bool):
        raise UnsupportedConstraintError("", "a schema is an object, true or false")
    try:
        references = References(schema, dialect_of(schema))
        workings = GoalWorkings(references, Budget(limits))
        root = goal_of(references.root)
        planned = PlannedShapes(root, workings)
        book = RuleBook(prefix=prefix, max_blank=max_blank, limits=limits)
        return write_grammar(root, planned, book, begins_with_blank=begins_with_blank)
    except RecursionError:
        raise ConstraintTooComplexError(
            "parts of the schema build on each other in too long a chain; use a shorter one"
        ) from None
