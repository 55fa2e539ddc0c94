"""Counters and histograms: plain values that one thread writes and any may read.

They take several observations of one value at once, so that what holds for each token of an output
costs once for the output.
"""

from bisect import bisect_left
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import repeat
from typing import Final

MAX_SERIES: Final = 512
"""Of one instrument. Labels are bounded where they are made; this holds if that fails."""
OTHER: Final = "other"
"""What every label says whose value is not one of those that are told apart."""


class InstrumentKind(StrEnum):
    """What an instrument's values mean."""

    COUNTER = "counter"
    """It only grows, from 0 at the start."""
    GAUGE = "gauge"
    """It is what it is now."""
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True, kw_only=True)
class Instrument:
    """What is measured."""

    name: str
    """As OpenTelemetry writes it, with dots."""
    kind: InstrumentKind
    unit: str = "1"
    """By UCUM: s, By, 1, or {tokens} and the like."""
    description: str
    labels: tuple[str, ...] = ()
    """Names of attributes, with dots."""
    bounds: tuple[float, ...] = ()
    """The greatest value of each bucket but the last, which takes all others."""


@dataclass(frozen=True, slots=True)
class Distribution:
    """What a histogram has counted."""

    counts: tuple[int, ...]
    """In each bucket, not added up; one more than there are bounds."""
    total: float
    """All values added up."""

    @property
    def num(self) -> int:
        """How many values there are."""
        return sum(self.counts)


@dataclass(frozen=True, slots=True)
class Point:
    """One series, now."""

    labels: tuple[str, ...]
    """Values, in the instrument's order."""
    value: float | Distribution


@dataclass(frozen=True, slots=True)
class Family:
    """All series of one instrument, now."""

    instrument: Instrument
    points: Sequence[Point]


class Counter:
    """Adds up."""

    def __init__(self, instrument: Instrument, known: Iterable[tuple[str, ...]] = ()) -> None:
        """Begins at 0.

        Args:
            instrument: What is counted.
            known: Label values of series that are told although nothing was counted yet.
        """
        assert instrument.kind is InstrumentKind.COUNTER
        self._instrument = instrument
        self._values: dict[tuple[str, ...], float] = dict.fromkeys(known, 0)

    def add(self, *labels: str, amount: float = 1) -> None:
        """Adds an amount to the series of these labels."""
        series = _bounded(labels, self._values)
        self._values[series] = self._values.get(series, 0) + amount

    def family(self) -> Family:
        """Returns what was counted. Any thread."""
        # Copied in one step of the interpreter, since the writer doesn't wait.
        copied = list(self._values.items())
        return Family(self._instrument, [Point(labels, value) for labels, value in copied])


class Histogram:
    """Counts values by size."""

    def __init__(self, instrument: Instrument, known: Iterable[tuple[str, ...]] = ()) -> None:
        """Begins empty; see Counter."""
        assert instrument.kind is InstrumentKind.HISTOGRAM
        assert list(instrument.bounds) == sorted(set(instrument.bounds))
        self._instrument = instrument
        self._series: dict[tuple[str, ...], _Buckets] = {}
        for labels in known:
            self._series[labels] = self._new_buckets()

    def observe(self, *labels: str, value: float, times: int = 1) -> None:
        """Counts a value, so many times, in the series of these labels."""
        series = _bounded(labels, self._series)
        buckets = self._series.get(series)
        if buckets is None:
            buckets = self._series[series] = self._new_buckets()
        buckets.counts[bisect_left(self._instrument.bounds, value)] += times
        buckets.total += value * times

    def family(self) -> Family:
        """Returns what was counted. Any thread."""
        copied = list(self._series.items())
        points = [
            Point(labels, Distribution(tuple(buckets.counts), buckets.total))
            for labels, buckets in copied
        ]
        return Family(self._instrument, points)

    def _new_buckets(self) -> "_Buckets":
        return _Buckets([0] * (len(self._instrument.bounds) + 1))


@dataclass(slots=True)
class _Buckets:
    counts: list[int]
    total: float = 0.0


def _bounded(labels: tuple[str, ...], series: Collection[tuple[str, ...]]) -> tuple[str, ...]:
    """Returns the labels of the series that counts: where there is no room, that of all others."""
    if labels in series or len(series) < MAX_SERIES:
        return labels
    return tuple(repeat(OTHER, len(labels)))
