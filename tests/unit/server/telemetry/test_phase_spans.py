"""The phases of a request as spans: chunks of its prompt, and times in which it rested."""

from dataclasses import replace

import msgspec
import pytest
from opentelemetry.sdk.resources import Resource

from antiphon_engine.api.request_times import PrefillChunk, RequestTimes, Rest
from antiphon_server.request_facts import RequestFacts
from antiphon_server.telemetry.request_record import (
    Outcome,
    RequestKind,
    RequestRecord,
    SpanPlace,
)
from antiphon_server.telemetry.request_spans import make_request_spans, num_spans
from antiphon_server.telemetry.span_making import SpanMaker

MS = 1_000_000
OFFSET_NS = 1_000_000 * MS


def chunk(start: int, end: int, step: int) -> PrefillChunk:
    return PrefillChunk(
        start_ns=start * MS, end_ns=end * MS, step=step, num_steps=1, num_tokens=8, num_rows=2
    )


def rest(start: int, end: int, *, held: bool) -> Rest:
    return Rest(start_ns=start * MS, end_ns=end * MS, held=held)


TIMES = RequestTimes(
    arrival_ns=11 * MS,
    num_steps=10,
    num_preemptions=1,
    num_rests=2,
    rest_ns=20 * MS,
    num_batch_rows=25,
    max_batch_rows=4,
    num_device_reused=3,
    num_host_reused=2,
    num_recomputed=6,
    chunks=[chunk(20, 30, 7), chunk(30, 40, 8)],
    rests=[rest(25, 28, held=True), rest(50, 67, held=False)],
)
RECORD = RequestRecord(
    kind=RequestKind.STREAM,
    place=SpanPlace(trace_id="ab" * 16, span_id="12" * 8),
    wall_offset_ns=OFFSET_NS,
    received_ns=10 * MS,
    ended_ns=100 * MS,
    outcome=Outcome.COMPLETED,
    prompt_tokens=21,
    cached_prompt_tokens=5,
    output_tokens=9,
    facts=RequestFacts(
        first_step_ns=20 * MS, first_token_ns=40 * MS, last_token_ns=90 * MS, times=TIMES
    ),
)


def test_chunks_are_below_the_prefill_and_rests_are_events_of_their_phase():
    maker = SpanMaker(Resource({}))

    make_request_spans(RECORD, maker)

    made = maker.take()
    by_name = {span.name: span for span in made}
    prefill, decode = by_name["prefill"], by_name["decode"]
    chunks = [span for span in made if span.name == "prefill.chunk"]
    assert [span.parent.span_id for span in chunks if span.parent] == [prefill.context.span_id] * 2
    assert [(span.start_time, span.end_time) for span in chunks] == [
        (OFFSET_NS + 20 * MS, OFFSET_NS + 30 * MS),
        (OFFSET_NS + 30 * MS, OFFSET_NS + 40 * MS),
    ]
    assert dict(chunks[1].attributes or {}) == {
        "antiphon.chunk.index": 1,
        "antiphon.tokens": 8,
        "antiphon.batch_size": 2,
        "antiphon.step": 8,
        "antiphon.steps": 1,
    }
    assert [(event.name, event.timestamp - OFFSET_NS) for event in prefill.events] == [
        ("paused", 25 * MS),
        ("resumed", 28 * MS),
    ]
    assert [event.name for event in decode.events] == ["first_token", "paused", "resumed"]
    assert (decode.attributes or {})["antiphon.batch_size.mean"] == 2.5
    assert num_spans(RECORD) == len(made) == 6


def test_queue_prefill_and_decode_take_from_the_receipt_to_the_last_token():
    maker = SpanMaker(Resource({}))

    make_request_spans(RECORD, maker)

    phases = {
        span.name: (span.end_time or 0) - (span.start_time or 0)
        for span in maker.take()
        if span.name in ("queue", "prefill", "decode")
    }
    assert sum(phases.values()) == RECORD.facts.last_token_ns - RECORD.received_ns


def test_waits_for_masks_are_told_of_the_whole_request():
    times = msgspec.structs.replace(TIMES, num_mask_waits=3, mask_wait_ns=250 * MS)
    record = replace(RECORD, facts=replace(RECORD.facts, times=times))
    maker = SpanMaker(Resource({}))

    for each in (record, RECORD):
        make_request_spans(each, maker)

    waited, plain = (
        dict(span.attributes or {})
        for span in maker.take()
        if "antiphon.request.kind" in (span.attributes or {})
    )
    assert (waited["antiphon.mask_waits"], waited["antiphon.mask_wait"]) == (3, 0.25)
    assert not {"antiphon.mask_waits", "antiphon.mask_wait"} & set(plain)


@pytest.mark.parametrize(("arrival_ms", "parent"), [(12, "queue"), (50, "text_completion")])
def test_the_wait_for_a_grammar_is_below_the_queue_or_below_the_turn_in_another_engine(
    arrival_ms: int, parent: str
):
    times = msgspec.structs.replace(TIMES, arrival_ns=arrival_ms * MS, grammar_wait_ns=7 * MS)
    record = replace(RECORD, is_chat=False, constraint="json_schema")
    record = replace(record, facts=replace(record.facts, times=times))
    maker = SpanMaker(Resource({}))

    make_request_spans(record, maker)

    made = maker.take()
    [waited] = [span for span in made if span.name == "queue.grammar"]
    [above] = [span for span in made if span.name == parent]
    assert waited.parent is not None
    assert waited.parent.span_id == above.context.span_id
    assert waited.start_time == OFFSET_NS + arrival_ms * MS
    assert waited.end_time == OFFSET_NS + (arrival_ms + 7) * MS
    assert dict(waited.attributes or {}) == {"antiphon.constraint": "json_schema"}
    assert num_spans(record) == len(made)
