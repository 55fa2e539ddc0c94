"""Regular expressions that a whole output matches."""

import pytest

from antiphon_server.constraints.expressions import plan_expression
from antiphon_server.constraints.refusals import UnsupportedConstraintError
from support.grammar_texts import Texts


@pytest.mark.parametrize(
    ("pattern", "inside", "outside"),
    [
        (r"\d{3}-\d{4}", ["555-0199"], ["555-019", "x555-0199", "555-01990"]),
        ("(yes|no)( please)?", ["yes", "no please"], ["yes  please", ""]),
        ("^(?!0)[0-9]+$", ["7", "70"], ["07", ""]),
        (r"[^\n]*\n?", ["", "a b\n"], ["a\nb"]),
        ("[äöü]+|日本", ["öä", "日本"], ["o", "日"]),
        (r'\{"a": "[^"]*"\}', ['{"a": "x"}'], ['{"a": x}']),
        # What ECMA-262 alone takes for a blank is none here, nor is it anything else.
        (r"a(\s|[.\s])b", ["a\u2003b", "a\nb", "a.b"], ["a\ufeffb", "a\u200bb"]),
        (r"a[^\s]|\S|(?!\s).c", ["ab", "b", "bc"], ["a\ufeff", "\ufeff", "\ufeffc"]),
        (r"[^\S]|(?!\S).c|[\sx]", [" ", "\u2003", " c", "x"], ["\ufeff", "\ufeffc", "ac", "a"]),
        (r"[\s\S]|a[^\s\S]", ["a", "\ufeff"], ["aa", ""]),
    ],
)
def test_the_whole_text_matches(pattern: str, inside: list[str], outside: list[str]):
    texts = Texts(plan_expression(pattern))
    assert [text for text in inside if not texts.has(text)] == []
    assert [text for text in outside if texts.has(text)] == []


@pytest.mark.parametrize(
    ("pattern", "path"), [("a(b", "position 1"), (r"(a)\1", "position 3"), ("a$b", "position 0")]
)
def test_a_fault_is_told_with_its_position(pattern: str, path: str):
    with pytest.raises(UnsupportedConstraintError) as refusal:
        plan_expression(pattern)
    assert refusal.value.path == path
