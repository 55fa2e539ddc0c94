"""What is known of constraints that were checked, within a number of bytes."""

from collections import OrderedDict
from typing import Final

from antiphon_server.constraints.check_messages import Refused
from antiphon_server.constraints.request import CheckedConstraint, ConstraintRequest

Known = CheckedConstraint | Refused
"""What a check found that it will always find."""

_ENTRY_BYTES: Final = 256


class CheckedCache:
    """The constraints that were asked for last; others go when there is no room."""

    def __init__(self, *, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._entries: OrderedDict[bytes, Known] = OrderedDict()
        self._num_bytes = 0

    @property
    def num_bytes(self) -> int:
        """What they take, about."""
        return self._num_bytes

    def find(self, request: ConstraintRequest) -> Known | None:
        """Returns what is known of a constraint, if anything."""
        key = request.digest()
        known = self._entries.get(key)
        if known is not None:
            self._entries.move_to_end(key)
        return known

    def add(self, request: ConstraintRequest, known: Known) -> None:
        """Keeps what was found of a constraint, unless it takes more than there is for all."""
        key = request.digest()
        self._drop(key)
        size_bytes = _size_bytes(known)
        if size_bytes > self._max_bytes:
            return
        self._entries[key] = known
        self._num_bytes += size_bytes
        while self._num_bytes > self._max_bytes:
            self._drop(next(iter(self._entries)))

    def _drop(self, key: bytes) -> None:
        known = self._entries.pop(key, None)
        if known is not None:
            self._num_bytes -= _size_bytes(known)


def _size_bytes(known: Known) -> int:
    if isinstance(known, Refused):
        return _ENTRY_BYTES + len(known.path) + len(known.message)
    return _ENTRY_BYTES + known.size_bytes
