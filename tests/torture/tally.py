"""What a run has counted, and what it has found wrong."""

import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

_MAX_EVENTS = 400
_MAX_FAULTS = 40


class Kind(Enum):
    """What can be wrong; the values are the names in the last line."""

    LOST = "turns_lost"
    """An acknowledged turn is not there, or has not the text that was seen."""
    DOUBLED = "turns_doubled"
    """A turn is there twice, or one that nobody asked for."""
    UNRESUMED = "streams_unresumed"
    """A stream did not go on where it broke off."""
    TEXT = "texts_changed"
    """What was read differs from what is kept, or from what an undisturbed run says."""
    LINEAGE = "lineages_wrong"
    """A history, a head or a parent is not the one that the calls made."""
    REFUSED = "calls_refused"
    """A call failed that should have worked."""
    PROCESS = "processes_leaked"
    FILE = "files_leaked"
    BLOCK = "blocks_leaked"
    LOG = "tracebacks_logged"


class ViolationError(Exception):
    """The server broke its word."""

    def __init__(self, kind: Kind, text: str) -> None:
        super().__init__(f"{kind.value}: {text}")
        self.kind = kind


@dataclass(slots=True)
class Tally:
    """Counts by name, faults by kind, and the latest events for whoever looks into one."""

    seed: int
    clock_s: Callable[[], float] = time.monotonic
    counts: Counter[str] = field(default_factory=Counter)
    faults: list[ViolationError] = field(default_factory=list)
    events: deque[str] = field(default_factory=lambda: deque(maxlen=_MAX_EVENTS))
    start_s: float = field(default_factory=time.monotonic)

    def note(self, event: str) -> None:
        """Remembers an event for a while."""
        self.events.append(f"{self.clock_s() - self.start_s:9.3f} {event}")

    def report(self, fault: ViolationError) -> None:
        """Takes a fault in, and tells it at once: runs are long."""
        print(fault, flush=True)
        self.note(f"FAULT {fault}")
        self.faults.append(fault)

    @property
    def hopeless(self) -> bool:
        """Whether going on would only repeat what is known."""
        return len(self.faults) >= _MAX_FAULTS

    @property
    def good(self) -> bool:
        """Whether nothing was wrong."""
        return not self.faults

    def figures(self) -> dict[str, int | float]:
        """Returns all figures for the last line."""
        kinds = Counter(fault.kind for fault in self.faults)
        return {
            "seed": self.seed,
            "kills": self.counts["kills"],
            "turns_acknowledged": self.counts["turns_acknowledged"],
            **{kind.value: kinds[kind] for kind in Kind},
            **dict(sorted(self.counts.items())),
            "seconds": round(self.clock_s() - self.start_s, 1),
        }
