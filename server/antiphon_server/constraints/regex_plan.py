"""From a regular expression to the grammar of the texts that it matches as a whole."""

from typing import Final

from antiphon_engine.api.grammar import Grammar, GrammarBackend, GrammarKind
from antiphon_server.constraints.json_schema.limits import PlanLimits
from antiphon_server.constraints.languages.derivatives import is_empty
from antiphon_server.constraints.languages.lark_text import plain_text
from antiphon_server.constraints.languages.pattern_syntax import PatternError
from antiphon_server.constraints.languages.patterns import matched
from antiphon_server.constraints.refusals import (
    ConstraintTooComplexError,
    UnsupportedConstraintError,
)

_MAX_STATES: Final = 2000


def plan_regex(text: str, *, limits: PlanLimits) -> Grammar:
    """Returns the grammar of the texts that a regular expression matches from end to end.

    The syntax is ECMA-262's, with Unicode: a dot is any character but the end of a line, digits and
    words are ASCII. Groups only hold together.

    Raises:
        UnsupportedConstraintError: it isn't one, or can't be enforced; names the position.
        ConstraintTooComplexError: it is too long when it's written out.
    """
    try:
        language = matched(text)
    except PatternError as error:
        raise UnsupportedConstraintError(f"position {error.position}", error.message) from None
    except RecursionError:
        raise ConstraintTooComplexError(
            "parts of the expression nest too deeply; use a flatter one"
        ) from None
    if is_empty(language, max_states=_MAX_STATES):
        raise UnsupportedConstraintError("", "no text matches this expression")
    body = f"start: TEXT\nTEXT: {plain_text(language)}\n"
    if len(body) > limits.max_grammar_bytes:
        raise ConstraintTooComplexError(
            f"the expression's grammar has {len(body)} bytes, and {limits.max_grammar_bytes} are "
            "allowed; use a shorter one",
            limit=str(limits.max_grammar_bytes),
        )
    return Grammar(backend=GrammarBackend.LLGUIDANCE, kind=GrammarKind.LARK, text=body)
