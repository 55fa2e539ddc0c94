"""What an output must look like, as the caller says it."""

import enum
import hashlib
from typing import Final

import msgspec

from antiphon_engine.api.grammar import Grammar, GrammarBackend

_BOOKKEEPING_BYTES: Final = 512


class ConstraintKind(enum.StrEnum):
    """The kinds, by the names of the fields that ask for them."""

    JSON_SCHEMA = "json_schema"
    JSON_OBJECT = "json_object"
    REGEX = "regex"
    EBNF = "ebnf"
    CHOICE = "choice"
    STRUCTURAL_TAG = "structural_tag"
    TOOLS = "tools"
    """What the contract has no kind for: free text or calls, as tools are on offer."""


JSON_KINDS: Final = frozenset(
    {ConstraintKind.JSON_SCHEMA, ConstraintKind.JSON_OBJECT, ConstraintKind.STRUCTURAL_TAG}
)
"""Those in whose outputs there can be white space between JSON's tokens."""


_BY_PARSER: Final = frozenset({ConstraintKind.EBNF})
"""Kinds whose texts have no lexemes that could be told from each other."""


class ConstraintRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A constraint whose size has been checked, and nothing else."""

    kind: ConstraintKind
    text: str = ""
    """Schema, expression, grammar, tag or ToolsConstraint; empty for the other kinds."""
    options: tuple[str, ...] = ()
    """Of CHOICE."""
    max_blank: int = 0
    """White-space characters in a row allowed outside of JSON's strings; 0: none."""

    @property
    def backend(self) -> GrammarBackend:
        """What enforces its kind."""
        if self.kind in _BY_PARSER:
            return GrammarBackend.XGRAMMAR
        return GrammarBackend.LLGUIDANCE

    def digest(self) -> bytes:
        """Returns what tells it from others."""
        return hashlib.sha256(msgspec.msgpack.encode(self)).digest()


class CheckedConstraint(msgspec.Struct, frozen=True, kw_only=True):
    """A constraint that can be enforced, and how."""

    request: ConstraintRequest
    grammar: Grammar
    compile_ns: int
    """How long planning and compiling it took."""

    @property
    def size_bytes(self) -> int:
        """What it takes in memory, about."""
        return (
            len(self.request.text)
            + sum(map(len, self.request.options))
            + len(self.grammar.text)
            + _BOOKKEEPING_BYTES
        )
