"""Collectors in trouble, and servers that end: cases G7-O2 and G7-O5."""

import asyncio
import logging
import socket
import threading
from collections import Counter
from pathlib import Path

import pytest
from antiphon.v1.inference_pb2 import GenerateRequest
from antiphon.v1.inference_pb2_grpc import InferenceServiceStub
from antiphon.v1.types_pb2 import GenerationConfig, Prompt, StopConditions

from antiphon_server.telemetry.exporter_log import EXPORTER_LOGGERS
from antiphon_server.telemetry.span_export import MAX_BATCH_SPANS
from support.engine_zygote import fork_fake_engine, forked
from support.fake_engine_process import Behaviour
from support.hollow_checkpoint import save_hollow_checkpoint
from support.log_records import log_records
from support.otlp_sink import Mood, OtlpSink
from support.scrapes import scrape
from support.server import running_server
from torture.victim import Victim

NUM_REQUESTS = 100
MAX_WAITING = 40
SPANS_OF_ONE = 7
"""The call, the request, its rendering, its queue, its prefill of one chunk, and its decode."""
MAX_MADE = MAX_BATCH_SPANS + SPANS_OF_ONE
"""What is made and has not been counted yet: a batch ends with the record that fills it."""
NUM_LAST_REQUESTS = 50
NUM_TO_HANG = 200
"""A silent collector would take minutes for their spans, ten seconds a batch."""


def request() -> GenerateRequest:
    return GenerateRequest(
        prompt=Prompt(text="one two three"),
        config=GenerationConfig(stop=StopConditions(max_output_tokens=2, ignore_eos=True)),
    )


async def ask(stub: InferenceServiceStub, num: int) -> None:
    for _ in range(num // 10):
        await asyncio.gather(*(stub.Generate(request()) for _ in range(10)))


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


@pytest.mark.parametrize("trouble", ["absent", Mood.REFUSES, Mood.SILENT, Mood.SLOW])
async def test_a_collector_in_trouble_costs_spans_and_nothing_else(
    tmp_path: Path, trouble: Mood | str
):
    mood = trouble if isinstance(trouble, Mood) else Mood.TAKES
    with log_records() as records, OtlpSink(mood=mood, delay_s=2.0).listening() as sink:
        endpoint = f"http://127.0.0.1:{free_port()}" if trouble == "absent" else sink.endpoint
        settings = (
            f"telemetry.otlp_endpoint={endpoint}",
            f"telemetry.max_waiting_records={MAX_WAITING}",
            "telemetry.metrics_interval_s=0.1",
            "telemetry.flush_limit_s=0.5",
            "telemetry.prometheus_listen=127.0.0.1:0",
        )
        async with running_server(tmp_path, settings=settings) as server:
            await ask(server.inference, NUM_REQUESTS)
            figures = server.server.telemetry.figures
            exporting = Counter(thread.name for thread in threading.enumerate())
            seen = await scrape(server.server.metering.address)

    # All were served, and what became of their spans is known but for those that are on their way:
    # what may wait, and a batch.
    num_spans = NUM_REQUESTS * SPANS_OF_ONE
    told = seen.sum("antiphon_telemetry_spans_dropped_total")
    told += seen.sum("antiphon_telemetry_spans_exported_total")
    assert seen.sum("antiphon_requests_total", outcome="completed") == NUM_REQUESTS
    assert num_spans - MAX_WAITING * SPANS_OF_ONE - MAX_MADE <= told <= num_spans
    assert seen.sum("antiphon_telemetry_spans_dropped_total", cause="no_room") > 0
    # At the end nothing waits any more.
    counted = figures.num_spans_exported + figures.num_spans_dropped
    assert num_spans - MAX_MADE <= counted <= num_spans
    # One thread for each signal, however long the collector takes.
    assert (exporting["spans"], exporting["metrics"]) == (1, 1)
    assert trouble == "absent" or sink.num_metric_exports
    lines = [line for line in records if line.name in EXPORTER_LOGGERS]
    assert len([line for line in lines if line.levelno >= logging.WARNING]) <= 1


async def test_all_spans_arrive_where_the_server_is_stopped_right_behind_requests(tmp_path: Path):
    with OtlpSink().listening() as sink:
        server = await started(tmp_path, sink)
        async with server.channel() as channel:
            await ask(InferenceServiceStub(channel), NUM_LAST_REQUESTS)
        server.stop()
        await server.gone()
        await server.close()

        requests = sink.named("text_completion tiny")
        calls = {span.span_id for span in sink.named("antiphon.v1.InferenceService/Generate")}

    assert len(requests) == len(calls) == NUM_LAST_REQUESTS
    assert {span.parent_id for span in requests} == calls
    # The last metrics come behind the last request.
    ended = [
        point.as_int
        for scope in sink.resource_metrics[-1].scope_metrics
        for metric in scope.metrics
        if metric.name == "antiphon.requests"
        for point in metric.sum.data_points
    ]
    assert sum(ended) == NUM_LAST_REQUESTS


async def test_a_silent_collector_does_not_hold_up_the_servers_end(tmp_path: Path):
    """How long that is, `make bench-collectors` asserts; here it is only not for ever."""
    with OtlpSink(mood=Mood.SILENT).listening() as sink:
        server = await started(tmp_path, sink)
        async with server.channel() as channel:
            await ask(InferenceServiceStub(channel), NUM_TO_HANG)
        server.stop()
        await server.gone()
        await server.close()

    log = server.log_path.read_text()
    assert sink.num_exports
    assert "Traceback" not in log
    assert "Fatal" not in log


async def started(directory: Path, sink: OtlpSink) -> Victim:
    """A server process over an engine process that computes nothing."""
    checkpoint = save_hollow_checkpoint(directory / "model")
    engine = fork_fake_engine(directory / "behaviour.json", Behaviour(alphabet=[300, 301]))
    settings = [f"model.source={checkpoint}", f"telemetry.otlp_endpoint={sink.endpoint}"]
    zygote = forked("torture.zygote")
    server = await Victim.prepare(directory, settings, engine, command=zygote)
    await server.start()
    assert await server.wait_up(), server.log_path.read_text()
    return server
