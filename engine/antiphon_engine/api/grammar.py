"""What an output must look like, as the engine is told.

A grammar is text that was parsed, normalised and tried before it crosses the boundary: the engine
builds a matcher from it, and nothing else. Frozen values, encoded like the other messages.
"""

import enum
from typing import Final

import msgspec


class GrammarBackend(enum.StrEnum):
    """The library that enforces a grammar, in whose language that is written."""

    XGRAMMAR = "xgrammar"
    """EBNF; its start rule is `root`."""
    LLGUIDANCE = "llguidance"
    """Lark; its start rule is `start`."""


LOADED_IN_TURN: Final = (GrammarBackend.LLGUIDANCE, GrammarBackend.XGRAMMAR)
"""What is loaded at the start: the second takes seconds and few ask for it."""


class Grammar(msgspec.Struct, frozen=True, kw_only=True):
    """What every output of a request satisfies when it ends by itself."""

    backend: GrammarBackend
    text: str


class Thinking(msgspec.Struct, frozen=True, kw_only=True):
    """The output begins with reasoning: no grammar holds for it, and none has begun before its end.

    The prompt ends behind the marker that opens it.
    """

    end_text: str
    """The marker that ends it, such as `</think>`. One token or many; blanks behind it too."""
    max_tokens: int | None = None
    """After so many tokens of reasoning the engine writes the end marker itself; None: never."""
