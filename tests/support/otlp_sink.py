"""A collector in the test's own process: takes spans and metrics by OTLP over gRPC."""

import enum
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent import futures
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Self

import grpc
from opentelemetry.proto.collector.metrics.v1 import (
    metrics_service_pb2,
    metrics_service_pb2_grpc,
)
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import ResourceMetrics
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, Span


class Mood(enum.Enum):
    """How it takes what comes."""

    TAKES = enum.auto()
    REFUSES = enum.auto()
    """With UNAVAILABLE."""
    SILENT = enum.auto()
    """Accepts, and never answers."""
    SLOW = enum.auto()
    """Takes it behind `delay_s`."""


@dataclass(frozen=True, slots=True)
class SeenSpan:
    """A span as it came, with what is said of its resource."""

    span: Span
    resource: Mapping[str, object]

    @property
    def name(self) -> str:
        return self.span.name

    @property
    def trace_id(self) -> str:
        return self.span.trace_id.hex()

    @property
    def span_id(self) -> str:
        return self.span.span_id.hex()

    @property
    def parent_id(self) -> str:
        return self.span.parent_span_id.hex()

    @property
    def traceparent(self) -> str:
        return f"00-{self.trace_id}-{self.span_id}-01"

    @property
    def attributes(self) -> dict[str, object]:
        return as_dict(self.span.attributes)

    @property
    def event_names(self) -> list[str]:
        return [event.name for event in self.span.events]

    @property
    def duration_ns(self) -> int:
        return self.span.end_time_unix_nano - self.span.start_time_unix_nano

    @property
    def links(self) -> dict[str, str]:
        """The ids of the spans that it points to, by why."""
        return {
            str(as_dict(link.attributes)["link.kind"]): link.span_id.hex()
            for link in self.span.links
        }


class OtlpSink(
    trace_service_pb2_grpc.TraceServiceServicer, metrics_service_pb2_grpc.MetricsServiceServicer
):
    """Keeps all that it takes."""

    def __init__(self, *, mood: Mood = Mood.TAKES, delay_s: float = 0.0) -> None:
        self.mood = mood
        self.delay_s = delay_s
        self.endpoint = ""
        self.num_exports = 0
        self.num_metric_exports = 0
        """Those of them that brought metrics."""
        self.metadata: dict[str, str | bytes] = {}
        """Of the last export."""
        self.resource_metrics: list[ResourceMetrics] = []
        self._resource_spans: list[ResourceSpans] = []
        self._news = threading.Condition()
        self._ended = threading.Event()

    def Export(self, request, context):
        self._meet(request, context)
        with self._news:
            if isinstance(request, trace_service_pb2.ExportTraceServiceRequest):
                self._resource_spans.extend(request.resource_spans)
                answer = trace_service_pb2.ExportTraceServiceResponse()
            else:
                self.resource_metrics.extend(request.resource_metrics)
                answer = metrics_service_pb2.ExportMetricsServiceResponse()
            self._news.notify_all()
        return answer

    @property
    def spans(self) -> list[SeenSpan]:
        """All spans, in the order in which they came."""
        with self._news:
            return [
                SeenSpan(span, as_dict(part.resource.attributes))
                for part in self._resource_spans
                for scope in part.scope_spans
                for span in scope.spans
            ]

    def named(self, name: str) -> list[SeenSpan]:
        """The spans of a name, by their start."""
        found = [span for span in self.spans if span.name == name]
        return sorted(found, key=lambda seen: seen.span.start_time_unix_nano)

    def below(self, parent: SeenSpan) -> list[SeenSpan]:
        """The spans right below another, by their start."""
        found = [span for span in self.spans if span.parent_id == parent.span_id]
        return sorted(found, key=lambda seen: seen.span.start_time_unix_nano)

    def forget(self) -> None:
        """Lets go of what it has taken."""
        with self._news:
            self._resource_spans.clear()
            self.resource_metrics.clear()

    def wait_for(self, num: int, name: str, *, limit_s: float = 30.0) -> list[SeenSpan]:
        """Waits until there are so many spans of a name. Blocks its thread."""
        end_s = time.monotonic() + limit_s
        while len(self.named(name)) < num:
            with self._news:
                left_s = end_s - time.monotonic()
                assert left_s > 0, (name, [span.name for span in self.spans])
                self._news.wait(min(left_s, 0.2))
        return self.named(name)

    def _meet(self, request: object, context: grpc.ServicerContext) -> None:
        self.num_exports += 1
        self.num_metric_exports += isinstance(
            request, metrics_service_pb2.ExportMetricsServiceRequest
        )
        self.metadata = dict(context.invocation_metadata())
        if self.mood is Mood.REFUSES:
            context.abort(grpc.StatusCode.UNAVAILABLE, "refused")
        if self.mood is Mood.SILENT:
            self._ended.wait()
        if self.mood is Mood.SLOW:
            self._ended.wait(self.delay_s)

    @contextmanager
    def listening(self) -> Iterator[Self]:
        """Listens on a port of its own until the block ends."""
        server = grpc.server(futures.ThreadPoolExecutor(max_workers=4))
        trace_service_pb2_grpc.add_TraceServiceServicer_to_server(self, server)
        metrics_service_pb2_grpc.add_MetricsServiceServicer_to_server(self, server)
        port = server.add_insecure_port("127.0.0.1:0")
        self.endpoint = f"http://127.0.0.1:{port}"
        server.start()
        try:
            yield self
        finally:
            self._ended.set()
            server.stop(0).wait()


def as_dict(attributes: "Iterator[KeyValue]") -> dict[str, object]:
    """Returns attributes as plain values."""
    return {pair.key: _plain(pair.value) for pair in attributes}


def _plain(value: AnyValue) -> object:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_plain(part) for part in value.array_value.values]
    return getattr(value, kind) if kind else None
