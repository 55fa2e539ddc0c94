"""Typed access to the fields of a JSON file that somebody else wrote."""

import json
from collections.abc import Mapping
from pathlib import Path

from antiphon_engine.api.errors import StartupError


class Fields:
    """The members of one JSON object. A member that is null counts as absent.

    All readers raise StartupError, naming file and member, where a member is of the wrong type,
    or absent without a default.
    """

    def __init__(self, members: Mapping[str, object], source: str) -> None:
        self._members = {name: value for name, value in members.items() if value is not None}
        self._source = source

    @classmethod
    def read(cls, path: Path) -> "Fields":
        """Reads a file. Raises StartupError where it is absent, unreadable or not a JSON object."""
        try:
            members = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise StartupError(f"can't read {path}: {error.strerror}") from error
        except RecursionError as error:
            raise StartupError(f"{path} is nested too deeply") from error
        except ValueError as error:
            raise StartupError(f"{path} is not valid JSON: {error}") from error
        if not isinstance(members, dict):
            raise StartupError(f"{path} holds no JSON object")
        return cls(members, path.name)

    def __contains__(self, name: str) -> bool:
        return name in self._members

    def integer(self, name: str, default: int | None = None) -> int:
        """Returns a whole number that is at least 1."""
        value = self._get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self._fault(name, value, "a whole number of at least 1")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """Returns a finite number."""
        value = self._get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._fault(name, value, "a number")
        if not abs(value) <= 1e30:  # NaN is neither more nor less.
            raise self._fault(name, value, "a number")
        return float(value)

    def boolean(self, name: str, default: bool) -> bool:
        """Returns a truth value."""
        value = self._get(name, default)
        if not isinstance(value, bool):
            raise self._fault(name, value, "true or false")
        return value

    def text(self, name: str, default: str | None = None) -> str:
        """Returns a string."""
        value = self._get(name, default)
        if not isinstance(value, str):
            raise self._fault(name, value, "a string")
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        """Returns a list of strings; () where absent."""
        value = self._members.get(name, [])
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self._fault(name, value, "a list of strings")
        return tuple(value)

    def token_ids(self, name: str) -> frozenset[int]:
        """Returns token ids given as one number or a list of numbers; empty where absent."""
        value = self._members.get(name, [])
        ids = value if isinstance(value, list) else [value]
        if not all(isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in ids):
            raise self._fault(name, value, "a token id or a list of token ids")
        return frozenset(ids)

    def nested(self, name: str) -> "Fields | None":
        """Returns a member that is an object itself; None where absent."""
        value = self._members.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self._fault(name, value, "an object")
        return Fields(value, f"{self._source}: {name}")

    def sizes(self, name: str) -> tuple[int, ...]:
        """Returns a list of whole numbers of at least 1; () where absent."""
        value = self._members.get(name, [])
        if isinstance(value, list) and all(type(item) is int and item >= 1 for item in value):
            return tuple(value)
        raise self._fault(name, value, "a list of whole numbers of at least 1")

    def names(self) -> tuple[str, ...]:
        """Returns the members' names."""
        return tuple(self._members)

    def string_map(self) -> dict[str, str]:
        """Returns all members, each a string."""
        return {name: self.text(name) for name in self._members}

    def _get(self, name: str, default: object) -> object:
        value = self._members.get(name, default)
        if value is None:
            raise StartupError(f"{self._source} lacks {name}")
        return value

    def _fault(self, name: str, value: object, wanted: str) -> StartupError:
        return StartupError(f"{self._source}: {name} is {value!r:.100}, but must be {wanted}")
