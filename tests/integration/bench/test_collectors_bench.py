"""The benchmark of collectors: what it makes of what it measured."""

from typing import cast

import grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import TraceServiceStub

from bench.collectors import (
    CONTROL,
    FLUSH_LIMIT_S,
    KINDS,
    MAX_GROWTH_BYTES,
    OFF,
    SILENT,
    TAKING,
    Pace,
    Served,
    faults_of,
    slowed,
    told,
)
from support.collector_process import collecting
from support.otlp_sink import Mood
from torture.victim import Victim


def _served(kind: str) -> Served:
    figures = {"warnings": 1.0, "minutes": 0.5, "spans_dropped": 9.0, "last_spans": 50.0}
    if kind in (OFF, CONTROL, TAKING):
        figures["spans_dropped"] = 0.0
    slower = 1 if kind == OFF else 1.02
    paces = [
        Pace(requests_per_s=each / slower, p99_s=slower / each, cpu_s=slower / each)
        for each in (100, 50, 20)
    ]
    return Served(
        kind=kind,
        victim=cast(Victim, None),  # Nothing is served.
        collector=None,
        begin_s=0,
        paces=paces,
        growth_bytes=1 << 20,
        end_s=0.3,
        figures=figures,
    )


def _servers() -> dict[str, Served]:
    return {kind: _served(kind) for kind in KINDS}


def test_servers_are_compared_with_the_one_without_telemetry_round_by_round():
    figures = told(list(_servers().values()))

    silent = figures[SILENT]
    assert isinstance(silent, dict)
    assert (silent["throughput_pct"], silent["p99_pct"], silent["cpu_pct"]) == (-1.96, 2.0, 2.0)
    assert figures["slowed"] == []
    assert silent["growth_mib"] == 1.0
    assert "p99_pct" not in cast(dict[str, object], figures[OFF])


def test_what_must_hold_is_told_where_it_does_not():
    assert faults_of(list(_servers().values())) == []

    servers = _servers()
    servers[SILENT].growth_bytes = MAX_GROWTH_BYTES + (3 << 20)
    servers[SILENT].end_s = FLUSH_LIMIT_S + 2
    servers[SILENT].figures |= {"warnings": 3.0, "spans_dropped": 0.0}
    servers[TAKING].figures["last_spans"] = 49.0

    assert faults_of(list(servers.values())) == [
        "taking: spans are missing",
        "silent: 34 MiB more than without telemetry",
        "silent: took 5.0 s to its end",
        "silent: 3 warnings",
        "silent: no span was dropped",
    ]


def test_collectors_that_cost_more_than_they_may_are_told_and_no_control_is():
    servers = _servers()
    for kind in (CONTROL, SILENT):
        servers[kind].paces = [
            Pace(requests_per_s=pace.requests_per_s * 0.96, p99_s=pace.p99_s * 1.04, cpu_s=1)
            for pace in servers[OFF].paces
        ]

    assert slowed(list(servers.values())) == ["silent: throughput -4.0 %", "silent: p99 +4.0 %"]


def test_a_collector_in_another_process_says_what_it_has():
    export = ExportTraceServiceRequest()
    export.resource_spans.add().scope_spans.add().spans.add(name="mine")
    with collecting(Mood.TAKES) as collector:
        with grpc.insecure_channel(collector.endpoint.removeprefix("http://")) as channel:
            TraceServiceStub(channel).Export(export, timeout=30)
        num_mine, num_other = (
            collector.wait_for(1, name, limit_s=0.1) for name in ("mine", "other")
        )
        collector.forget()
        num_left = collector.wait_for(0, "mine")

    assert (num_mine, num_other, num_left) == (1, 0, 0)
