"""Brings metrics to a collector, on a thread that nobody waits for."""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

import grpc
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricExporter,
    MetricExportResult,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from antiphon_server.telemetry import conventions as names
from antiphon_server.telemetry.figures import TelemetryFigures
from antiphon_server.telemetry.metric_values import Distribution, Family, InstrumentKind, Point

_EXPORTER_FAULTS: Final = (OSError, RuntimeError, TypeError, ValueError, grpc.RpcError)
"""What an exporter or its transport may raise, such as for headers that can't be sent."""

_log = logging.getLogger(__name__)
# A record of the standard library: the filter that keeps exporters to a line a minute is one too.


class MetricExport:
    """Exports all metrics once an interval, and once more at the end.

    What a collector does not take is counted, and goes again with the next: values count from the
    start, so nothing is lost by that. A collector that is slow or silent holds up this thread
    alone.
    """

    def __init__(
        self,
        exporter: MetricExporter,
        resource: Resource,
        *,
        families: Callable[[], Sequence[Family]],
        interval_s: float,
        figures: TelemetryFigures,
    ) -> None:
        """Sets what it exports; `start` begins.

        Args:
            exporter: Where metrics go; closed with this.
            resource: Whose metrics they are.
            families: Returns all; is called on the thread of this, and may wait.
            interval_s: How often.
            figures: Where failures are counted.
        """
        self._exporter = exporter
        self._resource = resource
        self._families = families
        self._interval_s = interval_s
        self._figures = figures
        self._start_ns = time.time_ns()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._work, name="metrics", daemon=True)

    def start(self) -> None:
        """Begins. The first export is an interval away."""
        self._thread.start()

    async def close(self, limit_s: float) -> None:
        """Exports once more, in so much time."""
        if self._closing.is_set() or not self._thread.ident:
            return
        self._closing.set()
        await asyncio.to_thread(self._thread.join, limit_s)
        if self._thread.is_alive():
            # Ends what it waits for; that may take its time as well, and is not waited for.
            threading.Thread(
                target=self._exporter.shutdown, name="metrics-end", daemon=True
            ).start()

    def _work(self) -> None:
        while not self._closing.wait(self._interval_s):
            self._export()
        self._export()
        self._exporter.shutdown()

    def _export(self) -> None:
        try:
            data = to_otlp(self._families(), self._resource, start_ns=self._start_ns)
            taken = self._exporter.export(data) is MetricExportResult.SUCCESS
        except _EXPORTER_FAULTS:
            _log.warning("metrics can't be exported", exc_info=True)
            taken = False
        if not taken:
            self._figures.num_failed_metric_exports += 1


def to_otlp(families: Sequence[Family], resource: Resource, *, start_ns: int) -> MetricsData:
    """Returns metrics as they are exported.

    Args:
        families: The metrics, as of now.
        resource: Whose they are.
        start_ns: Since when they were counted, since 1970.
    """
    now_ns = time.time_ns()
    metrics = []
    for family in families:
        if family.points:
            metrics.append(_metric(family, start_ns, now_ns))
        time.sleep(0)  # Lets the event loop have the interpreter.
    scope = ScopeMetrics(
        scope=InstrumentationScope(names.SCOPE), metrics=metrics, schema_url=names.SCHEMA_URL
    )
    whole = ResourceMetrics(
        resource=resource, scope_metrics=[scope], schema_url=resource.schema_url
    )
    return MetricsData(resource_metrics=[whole])


def _metric(family: Family, start_ns: int, now_ns: int) -> Metric:
    instrument = family.instrument
    data: Sum | Gauge | Histogram
    if instrument.kind is InstrumentKind.HISTOGRAM:
        data = Histogram(
            [_distribution(family, point, start_ns, now_ns) for point in family.points],
            AggregationTemporality.CUMULATIVE,
        )
    else:
        points = [_number(family, point, start_ns, now_ns) for point in family.points]
        if instrument.kind is InstrumentKind.GAUGE:
            data = Gauge(points)
        else:
            data = Sum(points, AggregationTemporality.CUMULATIVE, is_monotonic=True)
    return Metric(
        name=instrument.name, description=instrument.description, unit=instrument.unit, data=data
    )


def _number(family: Family, point: Point, start_ns: int, now_ns: int) -> NumberDataPoint:
    assert not isinstance(point.value, Distribution)
    return NumberDataPoint(
        attributes=_attributes(family, point),
        start_time_unix_nano=start_ns,
        time_unix_nano=now_ns,
        value=point.value if isinstance(point.value, float) else int(point.value),
    )


def _distribution(family: Family, point: Point, start_ns: int, now_ns: int) -> HistogramDataPoint:
    value = point.value
    assert isinstance(value, Distribution)
    return HistogramDataPoint(
        attributes=_attributes(family, point),
        start_time_unix_nano=start_ns,
        time_unix_nano=now_ns,
        count=value.num,
        sum=value.total,
        bucket_counts=value.counts,
        explicit_bounds=family.instrument.bounds,
        min=None,  # type: ignore[arg-type]  # Not kept; the exporter leaves them out.
        max=None,  # type: ignore[arg-type]  # Neither is this.
    )


def _attributes(family: Family, point: Point) -> dict[str, str]:
    pairs = zip(family.instrument.labels, point.labels, strict=True)
    return {key: value for key, value in pairs if value}
