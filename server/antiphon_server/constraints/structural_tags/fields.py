"""Fields of a document's objects, each read once; what is wrong or left over is refused by path."""

import re
from collections.abc import Sequence
from typing import Final, NoReturn

from antiphon_server.constraints.json_schema.document import Json
from antiphon_server.constraints.refusals import UnsupportedConstraintError

_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_EXCERPT: Final = 40


def refuse(path: str, message: str) -> NoReturn:
    """Raises UnsupportedConstraintError for a place."""
    raise UnsupportedConstraintError(path, message)


def said(value: Json) -> str:
    """Returns a value as refusals show it."""
    text = repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= _EXCERPT else f"{text[:_EXCERPT]}..."


def text_of(value: Json, path: str, *, may_be_empty: bool = True) -> str:
    """Returns a text. Raises UnsupportedConstraintError: it is none."""
    if not isinstance(value, str):
        refuse(path, f"must be a string, and is {said(value)}")
    if not value and not may_be_empty:
        refuse(path, "must not be empty")
    if _SURROGATE.search(value):
        refuse(path, "has half of a surrogate pair, which no output can have")
    return value


class Fields:
    """The fields of one object. All methods raise UnsupportedConstraintError."""

    def __init__(self, value: Json, path: str) -> None:
        if not isinstance(value, dict):
            refuse(path, f"must be an object, and is {said(value)}")
        for name in value:
            if _SURROGATE.search(name):
                refuse(path, f"the name {said(name)} has half of a surrogate pair")
        self.path = path
        self._values = value
        self._left = dict.fromkeys(value)

    def at(self, name: str) -> str:
        """Returns the path of a field."""
        return f"{self.path}.{name}" if self.path else name

    def has(self, name: str) -> bool:
        """Returns whether a field is there."""
        return name in self._values

    def needed(self, name: str) -> Json:
        """Returns a field that must be there."""
        if name not in self._values:
            refuse(self.path or name, f"needs the field {name!r}")
        return self.given(name)

    def given(self, name: str) -> Json:
        """Returns a field; None: it isn't there, or null."""
        self._left.pop(name, None)
        return self._values.get(name)

    def text(self, name: str, *, may_be_empty: bool = True) -> str:
        """Returns a text that must be there."""
        return text_of(self.needed(name), self.at(name), may_be_empty=may_be_empty)

    def items(self, name: str) -> Sequence[tuple[Json, str]]:
        """Returns the items, one at least, of a list that must be there, with their paths."""
        items = self.needed(name)
        if not isinstance(items, list) or not items:
            refuse(self.at(name), f"must be a list that isn't empty, and is {said(items)}")
        return [(item, f"{self.at(name)}[{index}]") for index, item in enumerate(items)]

    def texts(self, name: str) -> tuple[str, ...]:
        """Returns the texts of a list, which may not be there."""
        if self.given(name) in (None, []):
            return ()
        return tuple(text_of(item, path, may_be_empty=False) for item, path in self.items(name))

    def flag(self, name: str, *, default: bool) -> bool:
        """Returns a Boolean."""
        value = self.given(name)
        if value is None and not self.has(name):
            return default
        if not isinstance(value, bool):
            refuse(self.at(name), f"must be true or false, and is {said(value)}")
        return value

    def count(self, name: str, *, low: int, high: int) -> int | None:
        """Returns a whole number within bounds; None: it isn't there, or null."""
        value = self.given(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            refuse(self.at(name), f"must be a whole number from {low} to {high}: {said(value)}")
        return value

    def finish(self, noun: str) -> None:
        """Refuses what nobody asked for."""
        for name in self._left:
            refuse(self.at(name), f"{noun} has no such field")
