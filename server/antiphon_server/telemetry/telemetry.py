"""What the rest of the server tells of calls and requests, and where that goes."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from antiphon_server.telemetry.call_trace import CallTrace
from antiphon_server.telemetry.conventions import UNKNOWN_METHOD
from antiphon_server.telemetry.figures import TelemetryFigures
from antiphon_server.telemetry.request_record import CallRecord, RequestRecord
from antiphon_server.telemetry.request_recorder import (
    ContentCapture,
    RecorderTerms,
    RequestRecorder,
    RequestStart,
)
from antiphon_server.telemetry.sampling import SpanPlaces, TailSampling
from antiphon_server.trace_context import TraceContext


class RecordSink(Protocol):
    """What takes in records. Called on the event loop: it hands over and never waits."""

    def request_ended(self, record: RequestRecord) -> None:
        """Takes in a request or a turn."""

    def call_ended(self, record: CallRecord) -> None:
        """Takes in a call."""

    async def close(self, limit_s: float) -> None:
        """Passes on what it has, as far as that is possible within `limit_s`; then stops."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clocks:
    """Both in nanoseconds."""

    monotonic_ns: Callable[[], int] = time.monotonic_ns
    wall_ns: Callable[[], int] = time.time_ns

    def wall_offset_ns(self) -> int:
        """What an instant on the monotonic clock lacks to be one on the wall's."""
        return self.wall_ns() - self.monotonic_ns()


@dataclass(frozen=True, slots=True, kw_only=True)
class Telemetry:
    """Passes on what has ended. Used on one event loop; costs next to nothing without sinks."""

    sinks: Sequence[RecordSink] = ()
    places: SpanPlaces | None = None
    """None: nothing is traced."""
    tail: TailSampling = field(default_factory=TailSampling)
    capture: ContentCapture = field(default_factory=ContentCapture)
    clocks: Clocks = field(default_factory=Clocks)
    figures: TelemetryFigures = field(default_factory=TelemetryFigures)
    """What it counts of itself."""
    logs_requests: bool = False
    """Whether one of the sinks is the log."""

    def begin_call(self, method: str, context: TraceContext, *, request_id: str) -> CallTrace:
        """Notes that a call has begun.

        Args:
            method: `antiphon.v1.Service/Method`, one that is served.
            context: As it came with the call.
            request_id: The call's.
        """
        place = self.places.begin(context) if self.places else None
        return CallTrace(
            method,
            context,
            place=place,
            request_id=request_id,
            clock_ns=self.clocks.monotonic_ns,
        )

    def call_ended(self, call: CallTrace, *, code: str, reason: str = "") -> None:
        """Tells all sinks of a call that ends now.

        Args:
            call: The call.
            code: Its gRPC status by name.
            reason: An ErrorReason, where it failed by one.
        """
        if not self.sinks:
            return
        record = call.record(code, reason, wall_offset_ns=self.clocks.wall_offset_ns())
        for sink in self.sinks:
            sink.call_ended(record)

    def unknown_method_called(self) -> None:
        """Tells all sinks of a call to a method that is not served.

        It has no span: whoever can reach the port can make any number of them.
        """
        now_ns = self.clocks.monotonic_ns()
        record = CallRecord(
            method=UNKNOWN_METHOD,
            wall_offset_ns=self.clocks.wall_offset_ns(),
            started_ns=now_ns,
            ended_ns=now_ns,
            code="UNIMPLEMENTED",
        )
        for sink in self.sinks:
            sink.call_ended(record)

    def begin_request(self, start: RequestStart) -> RequestRecorder:
        """Notes that a request was received; its record is told as the recorder is ended."""
        place = self.places.begin(start.context) if self.places else None
        terms = RecorderTerms(
            tell=self._tell if self.sinks else None,
            wall_offset_ns=self.clocks.wall_offset_ns(),
            clock_ns=self.clocks.monotonic_ns,
            capture=self.capture,
            is_logged=self.logs_requests,
        )
        return RequestRecorder(start, place=place, terms=terms)

    async def close(self, limit_s: float) -> None:
        """Ends all sinks side by side, within `limit_s`."""
        async with asyncio.TaskGroup() as group:
            for sink in self.sinks:
                group.create_task(sink.close(limit_s))

    def _tell(self, record: RequestRecord) -> RequestRecord:
        """Tells all sinks of a request, and returns what they were told."""
        if record.place is not None and not record.place.is_sampled:
            kept_for = self.tail.reason(record)
            record = replace(record, kept_for=kept_for.value if kept_for else "")
        for sink in self.sinks:
            sink.request_ended(record)
        return record
