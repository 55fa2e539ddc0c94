"""The line that each request and each turn has in the log."""

import asyncio
import io
import json
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from antiphon.v1.inference_pb2 import GenerateRequest
from antiphon.v1.session_pb2 import CreateSessionRequest, RunTurnRequest
from antiphon.v1.types_pb2 import Prompt

from antiphon_server.config import LoggingConfig
from antiphon_server.logs import configure_logging
from support.fake_engine import FakeEngine
from support.otlp_sink import OtlpSink
from support.server import running_server
from support.tenants import bearer, token_entry, write_tokens
from support.traces import request, run_turn, submitted, traced_server, turn

SECRET = "tk-very-secret"
SAID = "one two three"


@pytest.fixture
def log(logging_as_before: None) -> Iterator[io.StringIO]:
    stream = io.StringIO()
    configured = configure_logging(LoggingConfig(format="json"), stream)
    yield stream
    configured.close()


def lines(log: io.StringIO, *events: str) -> list[dict[str, object]]:
    found = [json.loads(text) for text in log.getvalue().splitlines()]
    return [each for each in found if each["event"] in events]


async def test_a_request_has_one_line_with_its_figures_and_nothing_that_was_said(
    tmp_path: Path, log: io.StringIO
):
    tokens = write_tokens(tmp_path / "tokens.toml", token_entry(SECRET, "acme"))
    async with running_server(tmp_path, settings=[f"server.tokens_file={tokens}"]) as server:
        answer = await server.inference.Generate(request(4), metadata=bearer(SECRET))

    (line,) = lines(log, "request ended", "call refused")
    assert line["kind"] == "unary"
    assert (line["model"], line["tenant"]) == ("models/tiny", "acme")
    assert (line["outcome"], line["finish"]) == ("completed", ["max_output_tokens"])
    assert (line["prompt_tokens"], line["output_tokens"]) == (3, 4)
    assert 0 < line["queue_s"] <= line["first_token_s"] <= line["duration_s"]
    assert line["request_id"]
    assert "trace_id" not in line
    assert SECRET not in log.getvalue()
    assert SAID not in log.getvalue()
    assert answer.outputs[0].text not in log.getvalue()


async def test_turns_have_a_line_each_with_session_and_reuse(tmp_path: Path, log: io.StringIO):
    async with running_server(tmp_path) as server:
        await server.sessions.CreateSession(CreateSessionRequest(session_id="a"))
        for turn_id in ("t1", "t2"):
            await run_turn(server, turn(turn_id, 40))

    first, second = lines(log, "turn ended")
    assert (first["session"], first["turn"]) == ("sessions/a", "sessions/a/turns/t1")
    assert first["output_tokens"] == 40
    assert "cached_prompt_tokens" not in first
    assert second["cached_prompt_tokens"] >= 32


async def test_a_refused_request_has_one_line_with_its_reason(tmp_path: Path, log: io.StringIO):
    async with running_server(tmp_path) as server:
        with pytest.raises(grpc.aio.AioRpcError):
            await server.inference.Generate(
                GenerateRequest(model="models/other", prompt=Prompt(text=SAID))
            )
        with pytest.raises(grpc.aio.AioRpcError):
            async for _ in server.sessions.RunTurn(RunTurnRequest(session="sessions/no")):
                pass

    of_request, of_call = lines(log, "request ended", "turn ended", "call refused")
    assert (of_request["event"], of_request["reason"]) == ("request ended", "MODEL_NOT_FOUND")
    assert (of_call["event"], of_call["level"]) == ("call refused", "info")


async def test_calls_are_logged_where_requests_are_not(tmp_path: Path, log: io.StringIO):
    async with running_server(tmp_path, settings=["logging.requests=false"]) as server:
        with pytest.raises(grpc.aio.AioRpcError):
            await server.inference.Generate(GenerateRequest(model="models/other"))

    (line,) = lines(log, "request ended", "call refused")
    assert line["event"] == "call refused"


async def test_a_cancelled_request_says_so(tmp_path: Path, log: io.StringIO):
    engine = FakeEngine()
    engine.hold()
    async with running_server(tmp_path, engine=engine) as server:
        call = server.inference.Generate(request())
        await submitted(engine)
        call.cancel()
        async with asyncio.timeout(60):
            # A server that ends before it has heard of that fails the request itself.
            while not lines(log, "request ended"):  # noqa: ASYNC110 - has no event
                await asyncio.sleep(0.01)

    (line,) = lines(log, "request ended")
    assert line["outcome"] == "cancelled"
    assert "first_token_s" not in line


async def test_ids_of_a_trace_stand_where_it_is_told(
    tmp_path: Path, log: io.StringIO, sink: OtlpSink
):
    async with traced_server(tmp_path, sink) as server:
        await server.inference.Generate(request())
    async with traced_server(tmp_path, sink, "telemetry.sample_ratio=0") as server:
        await server.inference.Generate(request())

    told, untold = lines(log, "request ended")
    (span,) = [span for span in sink.spans if span.name.endswith(" tiny")]
    assert (told["trace_id"], told["span_id"]) == (span.trace_id, span.span_id)
    assert "trace_id" not in untold
