"""One of several texts, as a grammar."""

import json
from collections.abc import Sequence

from antiphon_engine.api.grammar import Grammar, GrammarBackend, GrammarKind


def plan_choices(options: Sequence[str]) -> Grammar:
    """Returns the grammar whose texts are the options, to the byte."""
    # As one lexeme: thousands of rules side by side would be too many for a parser's row.
    texts = "\n  | ".join(json.dumps(option) for option in dict.fromkeys(options))
    return Grammar(
        backend=GrammarBackend.LLGUIDANCE,
        kind=GrammarKind.LARK,
        text=f"start: OPTION\nOPTION: {texts}\n",
    )
