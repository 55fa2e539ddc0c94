"""A place in a schema's document that holds a subschema."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NoReturn

from antiphon_server.constraints.json_schema.dialect import Dialect
from antiphon_server.constraints.json_schema.document import Json, escape_pointer
from antiphon_server.constraints.refusals import UnsupportedConstraintError


@dataclass(frozen=True, slots=True, eq=False)
class SchemaNode:
    """A subschema. Two nodes are equal if they are the same place.

    Attributes:
        pointer: The place, as a JSON pointer from the document's beginning; made-up subschemas have
            the pointer of what they are made from, and a mark behind it.
        value: The subschema.
        base: The URI that its references are relative to.
        dialect: What its keywords mean.
    """

    pointer: str
    value: dict[str, Json] | bool
    base: str
    dialect: Dialect

    def __hash__(self) -> int:
        return hash(self.pointer)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SchemaNode) and self.pointer == other.pointer

    def get(self, keyword: str) -> Json:
        """Returns a keyword's value; None: it isn't there, or null."""
        return None if isinstance(self.value, bool) else self.value.get(keyword)

    def has(self, keyword: str) -> bool:
        """Says whether the keyword is there."""
        return not isinstance(self.value, bool) and keyword in self.value

    def refuse(self, keyword: str, message: str) -> NoReturn:
        """Refuses the schema because of a keyword."""
        raise UnsupportedConstraintError(f"{self.pointer}/{escape_pointer(keyword)}", message)

    def count(self, keyword: str) -> int | None:
        """Returns a keyword's value, a number of things; None: it isn't there."""
        value = self.get(keyword)
        if not self.has(keyword):
            return None
        if isinstance(value, bool) or not isinstance(value, int):
            whole = None if isinstance(value, bool | str | list | dict | None) else int(value)
            if whole is None or whole != value:
                self.refuse(keyword, "this must be a whole number")
            value = whole
        if value < 0:
            self.refuse(keyword, "this must not be negative")
        return value

    def names(self, keyword: str) -> tuple[str, ...]:
        """Returns a keyword's value, a list of strings."""
        return self.strings_of(keyword, self.get(keyword)) if self.has(keyword) else ()

    def strings_of(self, keyword: str, value: Json) -> tuple[str, ...]:
        """Returns a part of a keyword's value that must be a list of strings."""
        if not isinstance(value, list):
            self.refuse(keyword, "this must be a list of strings")
        strings = []
        for item in value:
            if not isinstance(item, str):
                self.refuse(keyword, "this must be a list of strings")
            strings.append(item)
        return tuple(strings)

    def members(self, keyword: str) -> Iterator[tuple[str, Json]]:
        """Yields the names and values of a keyword's value, an object."""
        value = self.get(keyword)
        if not self.has(keyword):
            return
        if not isinstance(value, dict):
            self.refuse(keyword, "this must be an object")
        yield from value.items()

    def made(self, mark: str, value: dict[str, Json] | bool) -> "SchemaNode":
        """Returns a made-up subschema that stands for a part of this one."""
        return SchemaNode(f"{self.pointer}#{mark}", value, self.base, self.dialect)
