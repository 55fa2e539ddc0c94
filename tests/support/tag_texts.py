"""What a structural tag's grammar produces and what it doesn't."""

import json

import pytest

from antiphon_server.constraints.json_schema import PlanLimits
from antiphon_server.constraints.refusals import UnsupportedConstraintError
from antiphon_server.constraints.request import ConstraintKind, ConstraintRequest
from antiphon_server.constraints.structural_tags import plan_tag
from antiphon_server.constraints.verification import Verification
from support.grammar_texts import Texts


class TagTexts:
    """The texts of one structural tag, as the grammar has them and as the last look does."""

    def __init__(self, tag: object, *, max_blank: int = 0) -> None:
        text = json.dumps(tag)
        limits = PlanLimits()
        self.grammar = Texts(plan_tag(text, max_blank=max_blank, limits=limits))
        self._request = ConstraintRequest(
            kind=ConstraintKind.STRUCTURAL_TAG, text=text, max_blank=max_blank
        )
        self._verification = Verification()

    def has(self, text: str) -> bool:
        """Returns whether it has a text. Both readings must say the same."""
        producible = self.grammar.has(text)
        violation = self._verification.find_violation(self._request, text, _no_other_look)
        assert producible == (violation == ""), f"{text!r}: {violation or 'is not producible'}"
        return producible


def check_texts(wanted: object, *, inside: list[str], outside: list[str]) -> None:
    """Asserts that some texts are in a format and others aren't."""
    texts = TagTexts({"type": "structural_tag", "format": wanted})
    assert [text for text in inside if not texts.has(text)] == []
    assert [text for text in outside if texts.has(text)] == []


def refusal_of(tag: object) -> UnsupportedConstraintError:
    """Returns why a structural tag is refused."""
    with pytest.raises(UnsupportedConstraintError) as refusal:
        plan_tag(json.dumps(tag), max_blank=0, limits=PlanLimits())
    return refusal.value


def _no_other_look(text: str) -> bool:
    raise AssertionError(f"the recogniser can't tell of {text!r}")
