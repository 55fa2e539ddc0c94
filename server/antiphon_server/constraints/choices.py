"""One of several texts, as a grammar."""

import json
from collections.abc import Sequence
from typing import Final

from antiphon_engine.api.grammar import Grammar, GrammarBackend
from antiphon_server.constraints.refusals import UnsupportedConstraintError

_MAX_OPTION_BYTES: Final = 64_000
"""The library has a state for each, and a limit."""


def plan_choices(options: Sequence[str]) -> Grammar:
    """Returns the grammar whose texts are the options, to the byte.

    Raises:
        UnsupportedConstraintError: one is too long; names it.
    """
    for index, option in enumerate(options):
        if (size := len(option.encode())) > _MAX_OPTION_BYTES:
            raise UnsupportedConstraintError(
                f"options[{index}]",
                f"it has {size} bytes, and no more than {_MAX_OPTION_BYTES} can be followed",
            )
    # As one lexeme: thousands of rules side by side would be too many for a parser's row.
    texts = "\n  | ".join(json.dumps(option) for option in dict.fromkeys(options))
    return Grammar(
        backend=GrammarBackend.LLGUIDANCE,
        text=f"start: OPTION\nOPTION: {texts}\n",
    )
