"""A trace as a backend gives it back, and what must hold of it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

PHASES = ("queue", "prefill", "decode")
CHUNK = "prefill.chunk"
_SLACK_S = 0.001
"""Backends round to microseconds, and a chunk ends in the engine before its token is news."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A span. Times are seconds since 1970."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    start_s: float
    end_s: float
    attributes: Mapping[str, object]

    @property
    def duration_s(self) -> float:
        return self.end_s - self.start_s

    @staticmethod
    def from_phoenix(row: Mapping[str, object]) -> "Span":
        """Reads what Phoenix's API gives."""
        context = row["context"]
        attributes = row["attributes"]
        assert isinstance(context, dict)
        assert isinstance(attributes, dict)
        return Span(
            name=str(row["name"]),
            trace_id=str(context["trace_id"]),
            span_id=str(context["span_id"]),
            parent_id=str(row["parent_id"] or ""),
            start_s=datetime.fromisoformat(str(row["start_time"])).timestamp(),
            end_s=datetime.fromisoformat(str(row["end_time"])).timestamp(),
            attributes=attributes,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a client knows of a turn or request."""

    traceparent: str
    """Where its span is."""
    call: str
    """The name of the span above it."""
    wait_s: float
    """From when it was sent to its end, on the client's clock; its last token may bring no text."""
    idle_wait_s: float
    """What a turn that computes nothing takes at most of the same client's time."""

    @property
    def trace_id(self) -> str:
        return self.traceparent.split("-")[1]

    @property
    def span_id(self) -> str:
        return self.traceparent.split("-")[2]


def below(spans: Sequence[Span], parent: Span) -> list[Span]:
    """Returns the spans right below another, by their start."""
    found = [span for span in spans if span.parent_id == parent.span_id]
    return sorted(found, key=lambda span: (span.start_s, span.end_s))


def drawn(spans: Sequence[Span], top: Span, depth: int = 0) -> Iterator[str]:
    """Yields the lines of a tree that people read."""
    yield f"{'   ' * depth}{top.name}  {1e3 * top.duration_s:.1f} ms"
    for child in below(spans, top):
        yield from drawn(spans, child, depth + 1)


def faults_of(answer: Answer, spans: Sequence[Span]) -> list[str]:
    """Returns what is wrong with the spans of an answer; an empty list where nothing is."""
    own = [span for span in spans if span.trace_id == answer.trace_id]
    whole = _whole_of(answer, own)
    if whole is None:
        return [f"span {answer.span_id} of trace {answer.trace_id} is not there"]
    faults = []
    call = next((span for span in own if span.span_id == whole.parent_id), None)
    if call is None or call.name != answer.call:
        faults.append(f"{whole.name} is not below {answer.call} but {call and call.name}")
    for parent in (call, whole, *below(own, whole)):
        if parent is not None:
            faults += _escapes(own, parent)
    phases = [span for span in below(own, whole) if span.name in PHASES]
    if tuple(span.name for span in phases) != PHASES:
        return [*faults, f"{whole.name} has the phases {[span.name for span in phases]}"]
    return [*faults, *_faults_of_phases(own, phases), *Measures.of(answer, own, whole).faults()]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measures:
    """How long an answer took from its receipt to its last token, by three clocks' accounts."""

    phases_s: float
    """Queue, prefill and decode. The last token's instant is the engine's."""
    front_end_s: float
    """From receipt to end as the front end has it, but for what it did behind the last token."""
    client_s: float
    """From its sending to its end, but for the same."""
    idle_client_s: float
    """What of that a turn takes that computes nothing."""

    @staticmethod
    def of(answer: Answer, spans: Sequence[Span], whole: Span) -> "Measures":
        """Reads a whole span, which has its phases below it."""
        children = below(spans, whole)
        phases = [span for span in children if span.name in PHASES]
        last_token_s = phases[-1].end_s
        # Writes, and the last look at the output. One may have begun before the last token.
        behind_s = sum(
            max(0.0, span.end_s - max(span.start_s, last_token_s))
            for span in children
            if span.name not in PHASES
        )
        return Measures(
            phases_s=sum(span.duration_s for span in phases),
            front_end_s=whole.duration_s - behind_s,
            client_s=answer.wait_s - behind_s,
            idle_client_s=answer.idle_wait_s,
        )

    def faults(self) -> Iterator[str]:
        """Yields where the accounts contradict each other."""
        if abs(self.phases_s - self.front_end_s) > _may_differ_s(self.front_end_s):
            yield f"the phases take {self.phases_s:.3f} s; the front end {self.front_end_s:.3f} s"
        least_s = self.client_s - self.idle_client_s - _may_differ_s(self.client_s)
        if not least_s <= self.phases_s <= self.client_s + _SLACK_S:
            yield f"the phases take {self.phases_s:.3f} s; the client waited {self.client_s:.3f} s"

    def __str__(self) -> str:
        return (
            f"from receipt to last token {1e3 * self.phases_s:.1f} ms by its phases and "
            f"{1e3 * self.front_end_s:.1f} ms by the front end (may differ by 5 % + 10 ms); "
            f"{1e3 * self.client_s:.1f} ms by the client, of which up to "
            f"{1e3 * self.idle_client_s:.1f} ms are what a turn takes that computes nothing"
        )


def measures_of(answer: Answer, spans: Sequence[Span]) -> Measures | None:
    """Returns how long an answer took; None where its span or its phases are not there."""
    own = [span for span in spans if span.trace_id == answer.trace_id]
    whole = _whole_of(answer, own)
    if whole is None or not any(span.name in PHASES for span in below(own, whole)):
        return None
    return Measures.of(answer, own, whole)


def _whole_of(answer: Answer, spans: Sequence[Span]) -> Span | None:
    return next((span for span in spans if span.span_id == answer.span_id), None)


def _may_differ_s(whole_s: float) -> float:
    return 0.05 * whole_s + 0.01


def _escapes(spans: Sequence[Span], parent: Span) -> Iterator[str]:
    for child in below(spans, parent):
        if child.start_s < parent.start_s - _SLACK_S or child.end_s > parent.end_s + _SLACK_S:
            yield f"{child.name} is not within the time of {parent.name}"


def _faults_of_phases(spans: Sequence[Span], phases: Sequence[Span]) -> Iterator[str]:
    queue, prefill, decode = phases
    for first, second in ((queue, prefill), (prefill, decode)):
        if abs(second.start_s - first.end_s) > _SLACK_S:
            yield f"{second.name} does not begin where {first.name} ends"
    if not any(span.name == CHUNK for span in below(spans, prefill)):
        yield "prefill has no chunks"
