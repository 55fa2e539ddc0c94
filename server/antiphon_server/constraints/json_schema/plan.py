"""From a JSON Schema's text to the grammar that enforces it exactly."""

import json

from antiphon_engine.api.grammar import Grammar, GrammarBackend, GrammarKind
from antiphon_server.constraints.json_schema.document import Json, parse_document
from antiphon_server.constraints.json_schema.limits import PlanLimits
from antiphon_server.constraints.refusals import UnsupportedConstraintError


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
    schema = parse_document(text, limits)
    if not isinstance(schema, dict | bool):
        raise UnsupportedConstraintError("", "a schema is an object, true or false")
    return Grammar(
        backend=GrammarBackend.LLGUIDANCE,
        kind=GrammarKind.JSON_SCHEMA,
        text=json.dumps(_plain(schema)),
        max_blank=max_blank,
    )


def _plain(value: Json) -> object:
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value if isinstance(value, bool | int | str | None) else float(value)
