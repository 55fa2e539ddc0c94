"""The phases of a request, one behind the other: queue, prefill, decode."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from opentelemetry.trace import SpanContext

from antiphon_engine.api.request_times import PrefillChunk
from antiphon_server.telemetry import conventions as names
from antiphon_server.telemetry.request_record import (
    AttributeValue,
    RequestEvent,
    RequestEventKind,
    RequestKind,
    RequestRecord,
)
from antiphon_server.telemetry.span_making import SpanDescription, SpanEvent, SpanMaker


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """A phase. Instants are on the monotonic clock."""

    name: str
    start_ns: int
    end_ns: int
    events: tuple[RequestEvent, ...] = ()
    """What happened in it, of the record's; only decoding tells of it."""


def phases_of(record: RequestRecord) -> list[Phase]:
    """Returns the phases that a request came to; together they last from receipt to last token."""
    if record.kind is RequestKind.APPENDED_TURN:
        return []
    facts, ended_ns = record.facts, record.ended_ns
    first_step_ns = facts.first_step_ns or ended_ns
    phases = [Phase(name=names.QUEUE, start_ns=record.received_ns, end_ns=first_step_ns)]
    if facts.first_step_ns:
        first_token_ns = facts.first_token_ns or ended_ns
        phases.append(Phase(name=names.PREFILL, start_ns=first_step_ns, end_ns=first_token_ns))
    if start_ns := facts.first_token_ns:
        end_ns = facts.last_token_ns
        inside = tuple(event for event in record.events if start_ns < event.at_ns <= end_ns)
        phases.append(Phase(name=names.DECODE, start_ns=start_ns, end_ns=end_ns, events=inside))
    return phases


def make_phase_spans(record: RequestRecord, maker: SpanMaker, parent: SpanContext) -> None:
    """Makes the spans of a request's phases."""
    for phase in phases_of(record):
        made = maker.make_child(_description(phase, record), parent)
        if phase.name == names.PREFILL:
            for index, chunk in enumerate(chunks_of(record)):
                maker.make_child(_chunk(index, chunk, record), made)
        if phase.name == names.QUEUE and (waited := grammar_wait_of(record)) is not None:
            # Behind a crash it is the next engine that compiles, and what was queued is long past.
            is_inside = waited.end_ns <= phase.end_ns
            maker.make_child(_description(waited, record), made if is_inside else parent)


def grammar_wait_of(record: RequestRecord) -> Phase | None:
    """Returns the engine's wait for a request's grammar; None: it waited for none."""
    times = record.facts.times
    if times is None or not times.grammar_wait_ns:
        return None
    start_ns = times.arrival_ns
    return Phase(
        name=names.QUEUE_GRAMMAR, start_ns=start_ns, end_ns=start_ns + times.grammar_wait_ns
    )


def chunks_of(record: RequestRecord) -> Sequence[PrefillChunk]:
    """Returns the parts in which a request's prompt was computed; the core bounds how many."""
    return record.facts.times.chunks if record.facts.times is not None else ()


def _description(phase: Phase, record: RequestRecord) -> SpanDescription:
    offset_ns = record.wall_offset_ns
    return SpanDescription(
        name=phase.name,
        start_ns=phase.start_ns + offset_ns,
        end_ns=phase.end_ns + offset_ns,
        attributes=_attributes(phase, record),
        events=[replace(event, at_ns=event.at_ns + offset_ns) for event in _events(phase, record)],
    )


def _chunk(index: int, chunk: PrefillChunk, record: RequestRecord) -> SpanDescription:
    return SpanDescription(
        name=names.PREFILL_CHUNK,
        start_ns=chunk.start_ns + record.wall_offset_ns,
        end_ns=chunk.end_ns + record.wall_offset_ns,
        attributes={
            names.CHUNK_INDEX: index,
            names.TOKENS: chunk.num_tokens,
            names.BATCH_SIZE: chunk.num_rows,
            names.FIRST_STEP: chunk.step,
            names.STEPS: chunk.num_steps,
        },
    )


def _attributes(phase: Phase, record: RequestRecord) -> dict[str, AttributeValue]:
    times = record.facts.times
    if phase.name == names.PREFILL:
        attributes: dict[str, AttributeValue] = {
            names.PROMPT_TOKENS: record.prompt_tokens,
            names.REUSED_TOKENS: record.cached_prompt_tokens,
        }
        if times is not None:
            attributes |= {
                names.CHUNKS: len(times.chunks),
                names.DEVICE_REUSED_TOKENS: times.num_device_reused,
                names.HOST_REUSED_TOKENS: times.num_host_reused,
            }
        return attributes
    if phase.name == names.DECODE:
        attributes = {
            names.TOKENS: record.output_tokens,
            names.STEPS: record.facts.num_steps,
            names.PREEMPTIONS: record.facts.num_preemptions,
        }
        if times is not None and times.num_steps:
            attributes |= {
                names.MEAN_BATCH_SIZE: times.num_batch_rows / times.num_steps,
                names.MAX_BATCH_SIZE: times.max_batch_rows,
                names.RECOMPUTED_TOKENS: times.num_recomputed,
                names.RESTS: times.num_rests,
            }
        return attributes
    if phase.name == names.QUEUE_GRAMMAR and record.constraint:
        return {names.CONSTRAINT: record.constraint}
    return {}


def _events(phase: Phase, record: RequestRecord) -> list[SpanEvent]:
    """Returns what happened in a phase, in order. Instants are on the monotonic clock."""
    events = list(_rests(phase, record))
    if phase.name == names.DECODE:
        events.append(SpanEvent(name=names.FIRST_TOKEN, at_ns=phase.start_ns))
        if record.is_recovered:
            # It was taken up before; here it goes on with what it had.
            events.append(
                SpanEvent(
                    name=RequestEventKind.RECOVERED.value,
                    at_ns=phase.start_ns,
                    attributes={names.EPOCH: record.epoch},
                )
            )
    events += [
        SpanEvent(name=event.kind.value, at_ns=event.at_ns, attributes=event.attributes)
        for event in phase.events
    ]
    return sorted(events, key=lambda event: event.at_ns)


def _rests(phase: Phase, record: RequestRecord) -> Iterator[SpanEvent]:
    """Yields the ends of the times in which a request that had begun had no memory."""
    if record.facts.times is None or phase.name == names.QUEUE:
        return
    for rest in record.facts.times.rests:
        reason = {names.REST_REASON: names.HELD if rest.held else names.PREEMPTED}
        if phase.start_ns <= rest.start_ns < phase.end_ns:
            yield SpanEvent(name=names.PAUSED, at_ns=rest.start_ns, attributes=reason)
        if phase.start_ns < rest.end_ns <= phase.end_ns:
            yield SpanEvent(name=names.GOES_ON, at_ns=rest.end_ns, attributes=reason)
