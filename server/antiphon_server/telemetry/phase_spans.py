"""The phases of a request, one behind the other: queue, prefill, decode."""

from dataclasses import dataclass

from opentelemetry.trace import SpanContext

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
        maker.make_child(_description(phase, record), parent)


def _description(phase: Phase, record: RequestRecord) -> SpanDescription:
    offset_ns = record.wall_offset_ns
    return SpanDescription(
        name=phase.name,
        start_ns=phase.start_ns + offset_ns,
        end_ns=phase.end_ns + offset_ns,
        attributes=_attributes(phase, record),
        events=[
            SpanEvent(name=name, at_ns=at_ns + offset_ns, attributes=attributes)
            for name, at_ns, attributes in _events(phase, record)
        ],
    )


def _attributes(phase: Phase, record: RequestRecord) -> dict[str, AttributeValue]:
    if phase.name == names.PREFILL:
        return {
            names.PROMPT_TOKENS: record.prompt_tokens,
            names.REUSED_TOKENS: record.cached_prompt_tokens,
        }
    if phase.name == names.DECODE:
        return {
            names.TOKENS: record.output_tokens,
            names.STEPS: record.facts.num_steps,
            names.PREEMPTIONS: record.facts.num_preemptions,
        }
    return {}


def _events(
    phase: Phase, record: RequestRecord
) -> list[tuple[str, int, dict[str, AttributeValue]]]:
    """Returns name, instant and attributes of what happened in a phase."""
    events: list[tuple[str, int, dict[str, AttributeValue]]] = []
    if phase.name == names.DECODE:
        events.append((names.FIRST_TOKEN, phase.start_ns, {}))
        if record.is_recovered:
            # It was taken up before; here it goes on with what it had.
            recovered = {names.EPOCH: record.epoch}
            events.append((RequestEventKind.RECOVERED.value, phase.start_ns, {**recovered}))
    events += [(event.kind.value, event.at_ns, dict(event.attributes)) for event in phase.events]
    return sorted(events, key=lambda event: event[1])
