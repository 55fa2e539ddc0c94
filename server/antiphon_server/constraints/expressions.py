"""Regular expressions that a whole output matches, as grammars."""

from typing import Final

from antiphon_engine.api.grammar import Grammar, GrammarBackend
from antiphon_server.constraints.languages.counting import find_excess
from antiphon_server.constraints.languages.derivatives import is_empty
from antiphon_server.constraints.languages.lark_text import plain_text
from antiphon_server.constraints.languages.pattern_syntax import PatternError
from antiphon_server.constraints.languages.patterns import matched
from antiphon_server.constraints.refusals import UnsupportedConstraintError

_MAX_STATES: Final = 2000
"""How far it is looked for a text that matches."""


def plan_expression(text: str) -> Grammar:
    """Returns the grammar whose texts are those that the expression matches as a whole.

    Raises:
        UnsupportedConstraintError: it is none, has a part that can't be enforced, or matches
            nothing; names the position.
    """
    try:
        language = matched(text)
    except PatternError as error:
        raise UnsupportedConstraintError(f"position {error.position}", error.message) from error
    if is_empty(language, max_states=_MAX_STATES):
        raise UnsupportedConstraintError("position 0", "no text matches it")
    if (excess := find_excess(language)) is not None:
        raise UnsupportedConstraintError("position 0", excess)
    # One lexeme: what the expression says of its parts is said of the whole text.
    return Grammar(
        backend=GrammarBackend.LLGUIDANCE,
        text=f"start: TEXT\nTEXT: {plain_text(language)}\n",
    )
