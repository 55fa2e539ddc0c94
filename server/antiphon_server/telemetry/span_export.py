"""Makes spans of records and brings them to a collector, on a thread that nobody waits for."""

import asyncio
import logging
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import Final

import grpc
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from antiphon_server.telemetry import call_spans, request_spans
from antiphon_server.telemetry.figures import TelemetryFigures
from antiphon_server.telemetry.request_record import CallRecord, RequestRecord
from antiphon_server.telemetry.span_making import SpanMaker

MAX_BATCH_SPANS: Final = 128
"""Goes out in one piece; to encode more would keep the event loop from the interpreter."""
MANY_RECORDS: Final = 64
"""So many are not made to wait for others."""
GATHERING_S: Final = 1.0
"""How long a record waits for others to go out with."""

_EXPORTER_FAULTS: Final = (OSError, RuntimeError, TypeError, ValueError, grpc.RpcError)
"""What an exporter or its transport may raise, such as for headers that can't be sent."""

_log = logging.getLogger(__name__)
# A record of the standard library: the filter that keeps exporters to a line a minute is one too.


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportBounds:
    """What may wait."""

    max_waiting_records: int
    gathering_s: float = GATHERING_S


class SpanExport:
    """A RecordSink that exports spans. Its records are handed over on one event loop.

    A record that finds no room is dropped and counted; so is what a collector does not take. One
    that is slow or silent holds up this thread alone.
    """

    def __init__(
        self,
        exporter: SpanExporter,
        resource: Resource,
        *,
        bounds: ExportBounds,
        figures: TelemetryFigures,
    ) -> None:
        """Starts the thread.

        Args:
            exporter: Where spans go; closed with this.
            resource: Whose spans they are.
            bounds: How much may wait.
            figures: Where it is counted.
        """
        self._exporter = exporter
        self._maker = SpanMaker(resource)
        self._bounds = bounds
        self._figures = figures
        self._waiting: deque[RequestRecord | CallRecord] = deque()
        self._some = threading.Event()
        self._hurry = threading.Event()
        self._closing = False
        self._thread = threading.Thread(target=self._work, name="spans", daemon=True)
        self._thread.start()

    def request_ended(self, record: RequestRecord) -> None:
        """See RecordSink."""
        if request_spans.is_told(record):
            self._hand_over(record)

    def call_ended(self, record: CallRecord) -> None:
        """See RecordSink."""
        if call_spans.is_told(record):
            self._hand_over(record)

    async def close(self, limit_s: float) -> None:
        """See RecordSink. What has not gone out by then is dropped."""
        self._closing = True
        self._hurry.set()
        self._some.set()
        await asyncio.to_thread(self._thread.join, limit_s)
        if self._thread.is_alive():
            self._drop_waiting()
            # Ends what it waits for; that may take its time as well, and is not waited for.
            threading.Thread(target=self._exporter.shutdown, name="spans-end", daemon=True).start()

    def _hand_over(self, record: RequestRecord | CallRecord) -> None:
        if self._closing or len(self._waiting) >= self._bounds.max_waiting_records:
            self._figures.num_spans_without_room += _num_spans(record)
            return
        self._waiting.append(record)
        if len(self._waiting) == 1:
            self._some.set()
        elif len(self._waiting) >= MANY_RECORDS:
            self._hurry.set()

    def _work(self) -> None:
        while not (self._closing and not self._waiting):
            self._some.wait()
            self._hurry.wait(self._bounds.gathering_s)
            # Cleared before the records are looked at, so that a later one is not overlooked.
            self._some.clear()
            if not self._closing:
                self._hurry.clear()
            while self._waiting:
                self._export_batch()
        self._exporter.shutdown()

    def _export_batch(self) -> None:
        batch: list[ReadableSpan] = []
        taken = False
        try:
            batch = self._next_batch()
            taken = self._exporter.export(batch) is SpanExportResult.SUCCESS
        except _EXPORTER_FAULTS:
            _log.warning("spans can't be exported", exc_info=True)
        if taken:
            self._figures.num_spans_exported += len(batch)
        else:
            self._figures.num_failed_exports += 1
            self._figures.num_spans_not_taken += len(batch)

    def _next_batch(self) -> list[ReadableSpan]:
        batch: list[ReadableSpan] = []
        while len(batch) < MAX_BATCH_SPANS:
            try:
                record = self._waiting.popleft()
            except IndexError:
                break
            if isinstance(record, RequestRecord):
                request_spans.make_request_spans(record, self._maker)
            else:
                call_spans.make_call_span(record, self._maker)
            batch += self._maker.take()
            time.sleep(0)  # Lets the event loop have the interpreter.
        return batch

    def _drop_waiting(self) -> None:
        while True:
            try:
                record = self._waiting.popleft()
            except IndexError:
                return
            self._figures.num_spans_without_room += _num_spans(record)


def _num_spans(record: RequestRecord | CallRecord) -> int:
    return request_spans.num_spans(record) if isinstance(record, RequestRecord) else 1
