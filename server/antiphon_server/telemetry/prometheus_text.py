"""Metrics in Prometheus's text format."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Final

from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from antiphon_server.telemetry.metric_values import Distribution, Family, Instrument, InstrumentKind

CONTENT_TYPE: Final = CONTENT_TYPE_LATEST
_SERIES_AT_A_TIME: Final = 8
"""A histogram's have some seventeen lines each."""
_HEADING_LINES: Final = 2
_UNITS: Final = {"s": "seconds", "By": "bytes"}


def render(families: Sequence[Family]) -> bytes:
    """Returns the text. Lets other threads have the interpreter between metrics."""
    return b"".join(part for family in families for part in _parts(family))


def _parts(family: Family) -> Iterator[bytes]:
    """Yields the text of a metric, a few series at a time."""
    # One without series has its heading all the same.
    for first in range(0, max(1, len(family.points)), _SERIES_AT_A_TIME):
        some = replace(family, points=family.points[first : first + _SERIES_AT_A_TIME])
        text = generate_latest(_One(_metric(some)))
        yield text if first == 0 else text.split(b"\n", _HEADING_LINES)[_HEADING_LINES]
        time.sleep(0)


def prometheus_name(instrument: Instrument) -> str:
    """Returns the name of an instrument without what Prometheus adds for its kind."""
    name = instrument.name.replace(".", "_")
    is_share = instrument.unit == "1" and instrument.kind is InstrumentKind.GAUGE
    unit = "ratio" if is_share else _UNITS.get(instrument.unit, "")
    return f"{name}_{unit}" if unit else name


class _One(Collector):
    """Stands for a registry that has one metric."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> Iterator[Metric]:
        yield self._metric


def _metric(family: Family) -> Metric:
    instrument = family.instrument
    name = prometheus_name(instrument)
    metric = Metric(name, instrument.description, instrument.kind.value)
    keys = [label.replace(".", "_") for label in instrument.labels]
    for point in family.points:
        labels = dict(zip(keys, point.labels, strict=True))
        if isinstance(point.value, Distribution):
            _add_histogram(metric, name, labels, point.value, instrument.bounds)
        elif instrument.kind is InstrumentKind.COUNTER:
            metric.add_sample(f"{name}_total", labels, point.value)
        else:
            metric.add_sample(name, labels, point.value)
    return metric


def _add_histogram(
    metric: Metric,
    name: str,
    labels: dict[str, str],
    value: Distribution,
    bounds: Sequence[float],
) -> None:
    so_far = list(accumulate(value.counts))
    for bound, num in zip((*bounds, float("inf")), so_far, strict=True):
        metric.add_sample(f"{name}_bucket", {**labels, "le": _as_go_writes(bound)}, num)
    metric.add_sample(f"{name}_count", labels, so_far[-1])
    metric.add_sample(f"{name}_sum", labels, value.total)


def _as_go_writes(bound: float) -> str:
    """Returns a bucket's bound as Prometheus's own programs write it."""
    return "+Inf" if bound == float("inf") else repr(float(bound))
