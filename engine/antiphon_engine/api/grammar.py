"""What an output must look like, as the engine is told.

A grammar is text that was parsed, normalised and tried before it crosses the boundary: the engine
builds a matcher from it, and nothing else. Frozen values, encoded like the other messages.
"""

import enum

import msgspec


class GrammarBackend(enum.StrEnum):
    """The library that enforces a grammar."""

    XGRAMMAR = "xgrammar"
    LLGUIDANCE = "llguidance"


class GrammarKind(enum.StrEnum):
    """The language that a grammar's text is in."""

    JSON_SCHEMA = "json_schema"
    """Normalised; the backend enforces every keyword that is left in it."""
    REGEX = "regex"
    EBNF = "ebnf"
    """Start rule `root`; the first backend's."""
    STRUCTURAL_TAG = "structural_tag"
    """JSON; the first backend's."""
    LARK = "lark"
    """Start rule `start`; the second backend's."""


class Grammar(msgspec.Struct, frozen=True, kw_only=True):
    """What every output of a request satisfies when it ends by itself."""

    backend: GrammarBackend
    kind: GrammarKind
    text: str
    max_blank: int = 0
    """White-space characters in a row that JSON_SCHEMA allows outside of strings; 0: none."""


class Thinking(msgspec.Struct, frozen=True, kw_only=True):
    """The output begins with reasoning: no grammar holds for it, and none has begun before its end.

    The prompt ends behind the marker that opens it.
    """

    end_text: str
    """The marker that ends it, such as `</think>`. One token or many; blanks behind it too."""
    max_tokens: int | None = None
    """After so many tokens of reasoning the engine writes the end marker itself; None: never."""
