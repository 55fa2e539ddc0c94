"""The spans of a request or a turn: one for the whole, and one for each of its phases."""

import json
from collections.abc import Iterator

from antiphon_server.telemetry import conventions as names
from antiphon_server.telemetry.phase_spans import (
    chunks_of,
    grammar_wait_of,
    make_phase_spans,
    phases_of,
)
from antiphon_server.telemetry.request_attributes import request_attributes
from antiphon_server.telemetry.request_record import (
    Content,
    Outcome,
    RequestKind,
    RequestRecord,
    Stage,
)
from antiphon_server.telemetry.span_making import SpanDescription, SpanEvent, SpanMaker


def is_told(record: RequestRecord) -> bool:
    """Whether a request has spans: it was sampled, or is kept for what it turned out to be."""
    return record.place is not None and (record.place.is_sampled or bool(record.kept_for))


def num_spans(record: RequestRecord) -> int:
    """Returns how many spans a request has."""
    num_in_phases = len(chunks_of(record)) + (grammar_wait_of(record) is not None)
    return 1 + len(record.stages) + len(phases_of(record)) + num_in_phases


def make_request_spans(record: RequestRecord, maker: SpanMaker) -> None:
    """Makes the spans of a request that is told."""
    assert record.place is not None
    whole = maker.make_placed(_whole(record), record.place)
    for stage in record.stages:
        maker.make_child(_stage(stage, record), whole)
    make_phase_spans(record, maker, whole)


def _whole(record: RequestRecord) -> SpanDescription:
    offset_ns = record.wall_offset_ns
    in_phases = {id(event) for phase in phases_of(record) for event in phase.events}
    has_failed = record.outcome is Outcome.FAILED
    return SpanDescription(
        name=_name(record),
        start_ns=record.received_ns + offset_ns,
        end_ns=record.ended_ns + offset_ns,
        attributes={**request_attributes(record), **_content_attributes(record.content)},
        events=[
            SpanEvent(
                name=event.kind.value, at_ns=event.at_ns + offset_ns, attributes=event.attributes
            )
            for event in record.events
            if id(event) not in in_phases
        ],
        links=record.links,
        error=(record.failure_reason or "unknown") if has_failed else "",
    )


def _name(record: RequestRecord) -> str:
    if record.kind is RequestKind.APPENDED_TURN:
        return names.APPEND
    operation = names.CHAT if record.is_chat else names.TEXT_COMPLETION
    return f"{operation} {record.model.removeprefix('models/')}".strip()


def _stage(stage: Stage, record: RequestRecord) -> SpanDescription:
    return SpanDescription(
        name=stage.kind.value,
        start_ns=stage.start_ns + record.wall_offset_ns,
        end_ns=stage.end_ns + record.wall_offset_ns,
        attributes={f"antiphon.{key}": value for key, value in stage.attributes.items()},
    )


def _content_attributes(content: Content | None) -> dict[str, str]:
    """Returns what was said, as the conventions and other backends want it."""
    return dict(_content_pairs(content)) if content is not None else {}


def _content_pairs(content: Content) -> Iterator[tuple[str, str]]:
    if content.input:
        yield names.INPUT_VALUE, content.input
        yield names.GEN_AI_INPUT_MESSAGES, _message("user", content.input)
    if content.output:
        yield names.OUTPUT_VALUE, content.output
        yield names.GEN_AI_OUTPUT_MESSAGES, _message("assistant", content.output)


def _message(role: str, text: str) -> str:
    message = {"role": role, "parts": [{"type": "text", "content": text}]}
    return json.dumps([message], ensure_ascii=False)
