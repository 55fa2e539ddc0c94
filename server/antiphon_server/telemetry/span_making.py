"""Makes spans of what is past: with their ids, their times and their parents given."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.id_generator import IdGenerator, RandomIdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    TraceFlags,
    TraceState,
    set_span_in_context,
)
from opentelemetry.trace.status import Status, StatusCode

from antiphon_server.telemetry.conventions import LINK_KIND, SCHEMA_URL, SCOPE
from antiphon_server.telemetry.request_record import AttributeValue, SpanLink, SpanPlace
from antiphon_server.trace_context import TraceContext

Attributes = Mapping[str, AttributeValue]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanEvent:
    """Something inside of a span. The instant is in ns since 1970."""

    name: str
    at_ns: int
    attributes: Attributes = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanDescription:
    """A span that has ended. Instants are in ns since 1970."""

    name: str
    kind: SpanKind = SpanKind.INTERNAL
    start_ns: int
    end_ns: int
    attributes: Attributes
    events: Sequence[SpanEvent] = ()
    links: Sequence[SpanLink] = ()
    error: str = ""
    """Why it is one that failed; empty: it isn't."""


class SpanMaker:
    """Makes spans, and keeps them until they are taken. Used by one thread at a time."""

    def __init__(self, resource: Resource) -> None:
        """Sets whose spans they are."""
        self._ids = _GivenIds()
        self._made = _Made()
        provider = TracerProvider(
            sampler=ALWAYS_ON, resource=resource, shutdown_on_exit=False, id_generator=self._ids
        )
        provider.add_span_processor(self._made)
        self._tracer = provider.get_tracer(SCOPE, schema_url=SCHEMA_URL)

    def make_placed(self, description: SpanDescription, place: SpanPlace) -> SpanContext:
        """Makes a span at a place that was given to it before."""
        self._ids.trace_id = int(place.trace_id, 16)
        self._ids.span_id = int(place.span_id, 16)
        parent = None
        if place.parent_id:
            parent = SpanContext(
                trace_id=self._ids.trace_id,
                span_id=int(place.parent_id, 16),
                is_remote=True,
                trace_flags=TraceFlags(TraceFlags.SAMPLED),
                trace_state=TraceState.from_header([place.tracestate] if place.tracestate else []),
            )
        return self._make(description, parent)

    def make_child(self, description: SpanDescription, parent: SpanContext) -> SpanContext:
        """Makes a span below another."""
        return self._make(description, parent)

    def take(self) -> list[ReadableSpan]:
        """Returns what was made since the last time."""
        made, self._made.spans = self._made.spans, []
        return made

    def _make(self, description: SpanDescription, parent: SpanContext | None) -> SpanContext:
        # An empty context, so that nothing of this thread's becomes the parent.
        context = Context()
        if parent is not None:
            context = set_span_in_context(NonRecordingSpan(parent), context)
        span = self._tracer.start_span(
            description.name,
            context=context,
            kind=description.kind,
            attributes=dict(description.attributes),
            links=[_link(link) for link in description.links],
            start_time=description.start_ns,
        )
        for event in description.events:
            span.add_event(event.name, dict(event.attributes), timestamp=event.at_ns)
        if description.error:
            span.set_status(Status(StatusCode.ERROR, description.error))
        span.end(end_time=max(description.start_ns, description.end_ns))
        return span.get_span_context()


class _Made(SpanProcessor):
    """Keeps spans as they end."""

    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []

    def on_end(self, span: ReadableSpan) -> None:
        self.spans.append(span)


class _GivenIds(IdGenerator):
    """Gives out the ids that were set, each once, and else random ones."""

    def __init__(self) -> None:
        self.trace_id: int | None = None
        self.span_id: int | None = None
        self._random = RandomIdGenerator()

    def generate_span_id(self) -> int:
        given, self.span_id = self.span_id, None
        return given or self._random.generate_span_id()

    def generate_trace_id(self) -> int:
        given, self.trace_id = self.trace_id, None
        return given or self._random.generate_trace_id()


def _link(link: SpanLink) -> Link:
    to = TraceContext(traceparent=link.traceparent)
    context = SpanContext(
        trace_id=int(to.trace_id, 16),
        span_id=int(to.span_id, 16),
        is_remote=True,
        trace_flags=TraceFlags(TraceFlags.SAMPLED if to.is_sampled else TraceFlags.DEFAULT),
    )
    return Link(context, {LINK_KIND: link.kind.value})
