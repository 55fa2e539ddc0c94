"""What a schema's grammar produces and what it doesn't."""

import json

import pytest

from antiphon_server.constraints.json_schema import PlanLimits, plan_schema
from antiphon_server.constraints.refusals import UnsupportedConstraintError
from support.grammar_texts import Texts


def texts_of(schema: object, *, max_blank: int = 0) -> Texts:
    """Returns the texts of a schema's grammar."""
    return Texts(plan_schema(json.dumps(schema), max_blank=max_blank, limits=PlanLimits()))


def refusal_of(schema: object) -> UnsupportedConstraintError:
    """Returns why a schema is refused."""
    with pytest.raises(UnsupportedConstraintError) as refusal:
        plan_schema(json.dumps(schema), max_blank=0, limits=PlanLimits())
    return refusal.value


def check_texts(schema: object, *, inside: list[str], outside: list[str]) -> None:
    """Asserts that some texts are producible and others aren't."""
    texts = texts_of(schema)
    assert [text for text in inside if not texts.has(text)] == []
    assert [text for text in outside if texts.has(text)] == []
