"""What is counted of a request, and what labels may say."""

import tracemalloc

import pytest

from antiphon_engine.api.request_times import RequestTimes
from antiphon_server.request_facts import RequestFacts
from antiphon_server.telemetry.labels import MAX_TENANTS
from antiphon_server.telemetry.metric_values import (
    MAX_SERIES,
    OTHER,
    Counter,
    Histogram,
    Instrument,
    InstrumentKind,
)
from antiphon_server.telemetry.prometheus_text import render
from antiphon_server.telemetry.request_metrics import RequestMetrics
from antiphon_server.telemetry.request_record import (
    CallRecord,
    Outcome,
    RequestKind,
    RequestRecord,
    Stage,
    StageKind,
)
from support.scrapes import Scraped

MS = 1_000_000
METHOD = "antiphon.v1.InferenceService/Generate"
NUM_RECORDS = 10_000
"""As many as case G7-O4 has."""
FIRST = "gen_ai_server_time_to_first_token_seconds"
PER_TOKEN = "gen_ai_server_time_per_output_token_seconds"
INTER_TOKEN = "antiphon_request_inter_token_latency_seconds"


def record(**values: object) -> RequestRecord:
    known: dict[str, object] = {
        "kind": RequestKind.UNARY,
        "wall_offset_ns": 0,
        "received_ns": 1000 * MS,
        "ended_ns": 1500 * MS,
        "model": "models/tiny",
        "outcome": Outcome.COMPLETED,
    }
    return RequestRecord(**{**known, **values})  # type: ignore[arg-type]


def ran(*sizes: int, **values: object) -> RequestRecord:
    """A request whose first step is 20 ms behind its receipt, first token 50, last 450."""
    facts = RequestFacts(first_step_ns=1020 * MS, first_token_ns=1050 * MS, last_token_ns=1450 * MS)
    return record(facts=facts, output_sizes=sizes, output_tokens=sum(sizes), **values)


def counted(*records: RequestRecord | CallRecord) -> Scraped:
    metrics = RequestMetrics(methods=[METHOD])
    metrics.follow(["tiny"])
    return told(metrics, *records)


def told(metrics: RequestMetrics, *records: RequestRecord | CallRecord) -> Scraped:
    for each in records:
        if isinstance(each, RequestRecord):
            metrics.request_ended(each)
        else:
            metrics.call_ended(each)
    return Scraped.parse(render(metrics.families()).decode())


def call(method: str = METHOD, code: str = "OK", reason: str = "") -> CallRecord:
    return CallRecord(
        method=method, wall_offset_ns=0, started_ns=0, ended_ns=3 * MS, code=code, reason=reason
    )


def test_a_request_is_counted_by_the_conventions():
    seen = counted(ran(5, is_chat=False, prompt_tokens=7, cached_prompt_tokens=4))

    assert seen.labels(f"{FIRST}_count") == [
        {
            "gen_ai_operation_name": "text_completion",
            "gen_ai_provider_name": "antiphon",
            "gen_ai_request_model": "tiny",
        }
    ]
    assert seen.sum(f"{FIRST}_sum") == pytest.approx(0.05)
    assert seen.sum(f"{FIRST}_bucket", le="0.04") == 0
    assert seen.sum(f"{FIRST}_bucket", le="0.06") == 1
    assert seen.sum(f"{PER_TOKEN}_sum") == pytest.approx(0.1)
    assert seen.sum("gen_ai_server_request_duration_seconds_sum") == pytest.approx(0.5)
    assert seen.sum("antiphon_request_queue_duration_seconds_sum") == pytest.approx(0.02)
    assert seen.sum("antiphon_request_prefill_duration_seconds_sum") == pytest.approx(0.03)
    assert seen.sum("antiphon_request_tokens_total", type="input") == 7
    assert seen.sum("antiphon_request_tokens_total", type="cached_input") == 4
    assert seen.sum("antiphon_request_tokens_total", type="output") == 5


def test_every_token_but_an_outputs_first_has_a_time_since_the_one_before():
    seen = counted(ran(5, 3), ran(1), ran(0, 2))

    assert seen.sum(f"{INTER_TOKEN}_count") == (5 - 1) + (3 - 1) + 0 + (2 - 1)
    assert seen.sum(f"{PER_TOKEN}_count") == 2
    assert seen.sum(f"{FIRST}_count") == 3
    assert seen.sum(f"{INTER_TOKEN}_sum") == pytest.approx(6 * 0.1 + 1 * 0.4)


def test_what_never_had_a_token_has_no_time_to_it():
    seen = counted(
        record(outcome=Outcome.CANCELLED),
        record(outcome=Outcome.FAILED, failure_reason="OVERLOADED"),
        record(facts=RequestFacts(first_step_ns=1020 * MS), output_sizes=(0,)),
    )

    assert seen.sum(f"{FIRST}_count") == seen.sum(f"{PER_TOKEN}_count") == 0
    assert seen.sum("antiphon_request_queue_duration_seconds_count") == 1
    assert seen.sum("antiphon_requests_total", outcome="cancelled") == 1
    duration = "gen_ai_server_request_duration_seconds_count"
    assert seen.sum(duration, error_type="OVERLOADED") == 1
    assert seen.sum("antiphon_request_failures_total", reason="OVERLOADED") == 1


def test_a_turn_that_an_earlier_server_took_in_has_tokens_and_no_latencies():
    seen = counted(ran(5, kind=RequestKind.TURN, is_recovered=True))

    assert seen.sum("antiphon_request_tokens_total", type="output") == 5
    assert seen.sum(f"{FIRST}_count") == seen.sum(f"{INTER_TOKEN}_count") == 0


def test_batch_sizes_writes_and_checks_are_counted():
    times = RequestTimes(
        arrival_ns=1010 * MS,
        grammar_wait_ns=8 * MS,
        num_steps=4,
        num_preemptions=0,
        num_rests=0,
        rest_ns=0,
        num_batch_rows=12,
        max_batch_rows=5,
        num_device_reused=0,
        num_host_reused=0,
        num_recomputed=0,
    )
    facts = RequestFacts(first_step_ns=1020 * MS, first_token_ns=1050 * MS, times=times)
    write = Stage(
        kind=StageKind.STORE_WRITE, start_ns=0, end_ns=4 * MS, attributes={"write": "accept"}
    )
    check = Stage(
        kind=StageKind.CONSTRAINT_CHECK,
        start_ns=0,
        end_ns=30 * MS,
        attributes={"checked": "constraint"},
    )

    seen = counted(
        record(facts=facts, output_sizes=(1,), stages=(write, check), constraint="json_schema"),
        record(outcome=Outcome.FAILED, failure_reason="CONSTRAINT_TOO_COMPLEX", stages=(check,)),
        record(outcome=Outcome.CANCELLED, stages=(check,)),
    )

    assert seen.sum("antiphon_request_batch_size_sum") == 3
    assert seen.sum("antiphon_request_grammar_wait_duration_seconds_sum") == 0.008
    assert seen.sum("antiphon_request_grammar_wait_duration_seconds_count") == 1
    assert seen.sum("antiphon_store_write_duration_seconds_sum", write="accept") == 0.004
    assert seen.sum("antiphon_constraint_check_duration_seconds_count") == 3
    for outcome in ("accepted", "too_complex", "broken_off"):
        assert seen.sum("antiphon_constraint_checks_total", outcome=outcome) == 1


def test_calls_are_counted_by_method_and_status():
    seen = counted(call(), call(code="NOT_FOUND", reason="MODEL_NOT_FOUND"))

    name = "rpc_server_call_duration_seconds"
    assert seen.sum(f"{name}_sum") == pytest.approx(0.006)
    known = {"rpc_system_name": "grpc", "rpc_method": METHOD}
    for code in ("OK", "NOT_FOUND"):
        assert seen.sum(f"{name}_count", **known, rpc_response_status_code=code) == 1
    assert seen.sum("antiphon_call_failures_total", reason="MODEL_NOT_FOUND") == 1


def test_names_that_nobody_knows_make_no_series_and_take_no_memory():
    metrics = RequestMetrics(methods=[METHOD])
    metrics.follow(["tiny"])
    before = told(metrics, ran(3), call())

    def strangers(*range_: int) -> None:
        for index in range(*range_):
            each = {
                "model": f"models/m{index}",
                "tenant": f"tenant-{index}",
                "session": f"sessions/s{index}",
                "turn": f"sessions/s{index}/turns/t",
                "request_id": f"r{index}",
            }
            metrics.request_ended(record(**each))
            metrics.request_ended(ran(2, **{**each, "model": "models/tiny"}))
            metrics.request_ended(
                record(outcome=Outcome.FAILED, failure_reason=f"REASON_{index}", **each)
            )
            metrics.call_ended(call(method=f"a.B/{index}", reason=f"REASON_{index}"))

    strangers(NUM_RECORDS)
    after = told(metrics)
    tracemalloc.start()
    try:
        strangers(NUM_RECORDS, NUM_RECORDS + 1000)
        size_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert MAX_TENANTS * 3 < 50
    new = set(after.series) - set(before.series)
    calls = {(name, labels) for name, labels in new if name.startswith("rpc_")}
    assert len(new) <= 50 + len(calls)
    assert {dict(labels)["rpc_method"] for _, labels in calls} == {OTHER}
    assert len(told(metrics).series) == len(after.series)
    assert size_bytes < 64 << 10
    assert after.sum("antiphon_call_failures_total", reason=OTHER) == NUM_RECORDS


def test_an_instrument_has_a_bounded_number_of_series_whatever_its_labels_say():
    counter = Counter(
        Instrument(name="a", kind=InstrumentKind.COUNTER, description="b", labels=("c",))
    )
    for index in range(2 * MAX_SERIES):
        counter.add(str(index))

    points = counter.family().points
    assert len(points) == MAX_SERIES + 1
    assert points[-1].labels == (OTHER,)
    assert points[-1].value == MAX_SERIES


def test_a_value_on_a_bound_is_in_the_bucket_below():
    histogram = Histogram(
        Instrument(name="a", kind=InstrumentKind.HISTOGRAM, description="b", bounds=(1.0, 2.0))
    )
    for value in (0.5, 1.0, 1.5, 2.0, 9.0):
        histogram.observe(value=value)

    (point,) = histogram.family().points
    assert point.value.counts == (2, 2, 1)
