"""Metrics at a collector."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric

from support.otlp_sink import Mood, OtlpSink, as_dict
from support.server import running_server
from support.traces import request, traced_server

LONG = "telemetry.metrics_interval_s=3600"
"""Only the end of a server brings metrics."""


def metrics_of(sink: OtlpSink) -> dict[str, Metric]:
    (resource,) = sink.resource_metrics
    (scope,) = resource.scope_metrics
    return {metric.name: metric for metric in scope.metrics}


async def test_the_end_of_a_server_brings_its_last_metrics(tmp_path: Path, sink: OtlpSink):
    async with traced_server(tmp_path, sink, LONG) as server:
        await server.inference.Generate(request(4))

    metrics = metrics_of(sink)
    first = metrics["gen_ai.server.time_to_first_token"]
    assert first.unit == "s"
    (point,) = first.histogram.data_points
    assert (point.count, sum(point.bucket_counts)) == (1, 1)
    assert len(point.bucket_counts) == len(point.explicit_bounds) + 1
    assert point.sum > 0
    assert as_dict(point.attributes) == {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": "antiphon",
        "gen_ai.request.model": "tiny",
    }
    assert 0 < point.start_time_unix_nano < point.time_unix_nano
    (between,) = metrics["antiphon.request.inter_token_latency"].histogram.data_points
    assert between.count == 3
    tokens = metrics["antiphon.request.tokens"].sum
    assert tokens.is_monotonic
    outputs = [
        each.as_int for each in tokens.data_points if as_dict(each.attributes)["type"] == "output"
    ]
    assert outputs == [4]
    (waiting,) = metrics["antiphon.engine.requests.waiting"].gauge.data_points
    assert waiting.as_int == 0
    (duration,) = metrics["gen_ai.server.request.duration"].histogram.data_points
    assert "error.type" not in as_dict(duration.attributes)


async def test_spans_and_metrics_are_of_one_server(tmp_path: Path, sink: OtlpSink):
    async with traced_server(tmp_path, sink, LONG) as server:
        await server.inference.Generate(request())

    (resource,) = sink.resource_metrics
    told = as_dict(resource.resource.attributes)
    assert told["service.instance.id"]
    assert all(span.resource == told for span in sink.spans)


async def test_metrics_go_out_once_an_interval(tmp_path: Path, sink: OtlpSink):
    async with traced_server(tmp_path, sink, "telemetry.metrics_interval_s=0.1"):
        async with asyncio.timeout(30):
            while len(sink.resource_metrics) < 3:  # noqa: ASYNC110 - the sink is on threads
                await asyncio.sleep(0.05)


@pytest.mark.parametrize(
    ("settings", "sends_spans", "sends_metrics"),
    [
        (["telemetry.metrics=false"], True, False),
        (["telemetry.traces=false"], False, True),
        (["telemetry.enabled=false"], False, False),
    ],
)
async def test_each_signal_can_be_left_out(
    tmp_path: Path,
    sink: OtlpSink,
    settings: Sequence[str],
    sends_spans: bool,
    sends_metrics: bool,
):
    async with traced_server(tmp_path, sink, LONG, *settings) as server:
        await server.inference.Generate(request())

    assert bool(sink.spans) == sends_spans
    assert bool(sink.resource_metrics) == sends_metrics


@pytest.mark.parametrize("mood", [Mood.REFUSES, Mood.SILENT])
async def test_a_collector_in_trouble_is_counted_and_not_waited_for(tmp_path: Path, mood: Mood):
    with OtlpSink(mood=mood).listening() as sink:
        settings = [
            f"telemetry.metrics_endpoint={sink.endpoint}",
            "telemetry.prometheus_listen=127.0.0.1:0",
            "telemetry.flush_limit_s=0.2",
            LONG,
        ]
        async with running_server(tmp_path, settings=settings) as server:
            await server.inference.Generate(request())
            figures = server.server.telemetry.figures
        assert sink.num_exports >= 1
        assert not sink.resource_metrics
        async with asyncio.timeout(30):
            while not figures.num_failed_metric_exports:  # noqa: ASYNC110 - counted on a thread
                await asyncio.sleep(0.01)
