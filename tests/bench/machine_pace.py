"""How steadily a machine computes: a little work now and then, measured by its own time on a core.

What others do beside it does not show in that time, or by a factor of two at most, where they share
caches or a core's units. Where it takes many times as long, the machine itself was slowed down, as
hosts do to virtual machines, and mostly without telling so by the time that they steal.
"""

import hashlib
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from types import TracebackType
from typing import Final, Self

_INTERVAL_S: Final = 0.004
_WORK: Final = bytes(16 << 10)
_SLOW: Final = 3.0
"""So many times the median is slow."""
_MIN_SAMPLES: Final = 3
"""So many slow ones in a row are no chance."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One piece of the work."""

    at_ns: int
    """When it was done, CLOCK_MONOTONIC."""
    cost_ns: int
    """The thread's time on a core."""


@dataclass(slots=True)
class MachinePace:
    """Samples of the machine's pace, taken by a thread while the block lasts."""

    samples: list[Sample] = field(default_factory=list)
    _ends: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._sample, name="machine pace", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._ends.set()
        assert self._thread is not None
        self._thread.join()

    def _sample(self) -> None:
        while not self._ends.wait(_INTERVAL_S):
            start_ns = time.thread_time_ns()
            hashlib.blake2b(_WORK).digest()
            cost_ns = time.thread_time_ns() - start_ns
            self.samples.append(Sample(time.monotonic_ns(), cost_ns))


def slow_spans(samples: Sequence[Sample]) -> list[tuple[int, int]]:
    """Returns the spans of time (ns) in which the machine was slow, in order."""
    usual_ns = median(each.cost_ns for each in samples) if samples else 0.0
    spans: list[tuple[int, int]] = []
    num_slow, start_ns = 0, 0
    for before, each in pairwise(samples):
        if each.cost_ns < _SLOW * usual_ns:
            num_slow = 0
            continue
        num_slow += 1
        if num_slow == 1:
            start_ns = before.at_ns
        elif num_slow == _MIN_SAMPLES:
            spans.append((start_ns, each.at_ns))
        elif num_slow > _MIN_SAMPLES:
            spans[-1] = (start_ns, each.at_ns)
    return spans
