"""What a structural tag is made of: the values that a document is read into.

Each has its `path` in the document, such as `format.elements[1]`. Free text knows the ends of the
tag that it is in: it stops in front of the first, so they are among its `excludes`.
"""

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedText:
    """One text."""

    path: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonValue:
    """The texts of a schema's instances.

    Attributes:
        schema: Its text.
        max_blank: White-space characters in a row between JSON's tokens; None: as elsewhere.
    """

    path: str
    schema: str
    max_blank: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FreeText:
    """Any text, up to `max_chars` characters, that has none of `excludes` in it."""

    path: str
    excludes: tuple[str, ...] = ()
    max_chars: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Expression:
    """The texts that a regular expression matches as a whole."""

    path: str
    pattern: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InARow:
    """One text of each element, in order."""

    path: str
    elements: "tuple[Format, ...]"


@dataclass(frozen=True, slots=True, kw_only=True)
class OneOf:
    """A text of any of the elements."""

    path: str
    elements: "tuple[Format, ...]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeated:
    """`low` to `high` texts of the content in a row; None: any number."""

    path: str
    content: "Format"
    low: int
    high: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tag:
    """The beginning, the content, then one of the ends."""

    path: str
    begin: str
    content: "Format"
    ends: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dispatch:
    """Free text in which the first text of a trigger must be followed by what that leads to.

    Attributes:
        triggers: The triggers, each with what follows. None has another, or an exclude, inside.
        loops: Whether free text and triggers may follow again; otherwise it ends there.
        excludes: What the free text doesn't have in it.
        first: What must come before all that; None: nothing.
    """

    path: str
    triggers: "tuple[tuple[str, Format], ...]"
    loops: bool
    excludes: tuple[str, ...] = ()
    first: "Format | None" = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Separated:
    """Elements with the separator between them: `low` at least, `high` at most (None: any)."""

    path: str
    elements: tuple[Tag, ...]
    separator: str
    low: int
    high: int | None


Format: TypeAlias = (
    FixedText
    | JsonValue
    | FreeText
    | Expression
    | InARow
    | OneOf
    | Repeated
    | Tag
    | Dispatch
    | Separated
)
