"""How long core requests sat out until their masks were there."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(slots=True)
class _Waited:
    num: int = 0
    whole_ns: int = 0
    since_ns: int = 0
    """Of the wait that goes on; 0: none does."""


class MaskWaits:
    """Adds up waits, request by request. Only requests that waited take room."""

    def __init__(self, clock_ns: Callable[[], int]) -> None:
        self._clock_ns = clock_ns
        self._waited: dict[int, _Waited] = {}

    def begin(self, handle: int) -> None:
        """Notes that a request sits out. Idempotent, until `end`."""
        waited = self._waited.setdefault(handle, _Waited())
        if not waited.since_ns:
            waited.num += 1
            waited.since_ns = self._clock_ns()

    def end(self, handle: int) -> None:
        """Notes that a request has rows again; nothing where it did not sit out."""
        waited = self._waited.get(handle)
        if waited is not None and waited.since_ns:
            waited.whole_ns += self._clock_ns() - waited.since_ns
            waited.since_ns = 0

    def take(self, handle: int) -> tuple[int, int]:
        """Forgets a request; returns how often it sat out, and for how many ns in all."""
        self.end(handle)
        waited = self._waited.pop(handle, _Waited())
        return waited.num, waited.whole_ns
