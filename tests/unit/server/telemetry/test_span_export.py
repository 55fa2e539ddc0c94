"""The way of spans to a collector: bounded, counted, and waited for by nobody."""

import threading
from collections.abc import Sequence

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from antiphon_server.telemetry.figures import TelemetryFigures
from antiphon_server.telemetry.request_record import CallRecord, SpanPlace
from antiphon_server.telemetry.span_export import ExportBounds, SpanExport

LIMIT_S = 30.0
MAX_WAITING = 5


class GatedExporter(SpanExporter):
    """Takes nothing before its gate is open, and raises as often as it is told to."""

    def __init__(self, *, num_faults: int = 0) -> None:
        self.gate = threading.Event()
        self.entered = threading.Event()
        self.ended = threading.Event()
        self.names: list[str] = []
        self._num_faults = num_faults

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.entered.set()
        self.gate.wait()
        if self._num_faults:
            self._num_faults -= 1
            raise ValueError("a header that can't be sent")
        self.names += [span.name for span in spans]
        return SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        self.ended.set()
        self.gate.set()


def call(number: int) -> CallRecord:
    return CallRecord(
        method=f"call {number}",
        place=SpanPlace(trace_id=f"{number + 1:032x}", span_id=f"{number + 1:016x}"),
        wall_offset_ns=0,
        started_ns=1,
        ended_ns=2,
        code="OK",
    )


def exporting(exporter: GatedExporter) -> tuple[SpanExport, TelemetryFigures]:
    figures = TelemetryFigures()
    bounds = ExportBounds(max_waiting_records=MAX_WAITING, gathering_s=0.0)
    return SpanExport(exporter, Resource({}), bounds=bounds, figures=figures), figures


async def test_what_finds_no_room_is_dropped_and_counted_and_the_rest_arrives_in_order():
    exporter = GatedExporter()
    export, figures = exporting(exporter)
    export.call_ended(call(0))
    assert exporter.entered.wait(LIMIT_S)

    for number in range(1, MAX_WAITING + 4):
        export.call_ended(call(number))
    dropped = figures.num_spans_without_room
    exporter.gate.set()
    await export.close(LIMIT_S)

    assert dropped == figures.num_spans_dropped == 3
    assert exporter.names == [f"call {number}" for number in range(MAX_WAITING + 1)]
    assert figures.num_spans_exported == MAX_WAITING + 1
    assert exporter.ended.is_set()


async def test_an_end_that_a_collector_would_hold_up_counts_what_is_lost():
    exporter = GatedExporter()
    export, figures = exporting(exporter)
    export.call_ended(call(0))
    assert exporter.entered.wait(LIMIT_S)
    export.call_ended(call(1))
    export.call_ended(call(2))

    await export.close(0.01)
    export.call_ended(call(3))

    assert figures.num_spans_without_room == 3
    assert exporter.ended.wait(LIMIT_S), "the exporter was not asked to end"


async def test_an_exporter_that_fails_loses_its_batch_alone():
    exporter = GatedExporter(num_faults=1)
    export, figures = exporting(exporter)
    exporter.gate.set()
    export.call_ended(call(0))
    assert exporter.entered.wait(LIMIT_S)
    export.call_ended(call(1))
    await export.close(LIMIT_S)

    assert exporter.names == ["call 1"]
    assert (figures.num_failed_exports, figures.num_spans_not_taken) == (1, 1)
    assert figures.num_spans_exported == 1


async def test_what_is_not_sampled_is_not_handed_over():
    exporter = GatedExporter()
    export, figures = exporting(exporter)
    place = SpanPlace(trace_id="ab" * 16, span_id="12" * 8, is_sampled=False)
    record = call(0)

    export.call_ended(
        CallRecord(
            method=record.method,
            place=place,
            wall_offset_ns=0,
            started_ns=1,
            ended_ns=2,
            code="NOT_FOUND",
        )
    )
    await export.close(LIMIT_S)

    assert not exporter.entered.is_set()
    assert figures.num_spans_exported == figures.num_spans_dropped == 0
