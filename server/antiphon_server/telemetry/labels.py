"""The few values that labels have, whatever callers send."""

from collections.abc import Iterable
from typing import Final

from antiphon_server.telemetry.metric_values import OTHER

MAX_TENANTS: Final = 15
"""Told apart by name; all further ones are one."""


class KnownLabels:
    """Lets values through that are known, and no others."""

    def __init__(self, known: Iterable[str] = ()) -> None:
        """Sets the known ones."""
        self._known = frozenset(known)

    def label(self, value: str) -> str:
        """Returns the value, where it is known."""
        return value if value in self._known else OTHER


class FirstLabels:
    """Lets the first few values through that come, and no others after these.

    For values that a credential or a setting stands behind: few come, and which is not known
    beforehand. Never for what a caller may choose.
    """

    def __init__(self, max_values: int) -> None:
        """Sets how many."""
        self._max_values = max_values
        self._seen: set[str] = set()

    def label(self, value: str) -> str:
        """Returns the value, where it is one of the first."""
        if value in self._seen:
            return value
        if len(self._seen) >= self._max_values:
            return OTHER
        self._seen.add(value)
        return value
