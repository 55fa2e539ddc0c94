"""What a collector gets of calls and requests: which spans, where they stand, what they say.

Spans go out as the server ends, so each test looks behind its server's block.
"""

import asyncio
import logging
from pathlib import Path

import grpc
import pytest
from antiphon.v1.inference_pb2 import (
    CancelGeneration,
    MultiplexGenerateRequest,
)
from antiphon.v1.session_pb2 import (
    CreateSessionRequest,
    GetTurnRequest,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from antiphon_engine.api.handle import EngineState
from support.fake_engine import FakeEngine
from support.otlp_sink import OtlpSink
from support.traces import (
    COMES_WITH,
    PARENT,
    TRACE,
    check_whole,
    is_inside,
    read_all,
    request,
    submitted,
    traced_server,
)


async def test_a_request_has_one_span_below_its_calls_with_its_phases(
    tmp_path: Path, sink: OtlpSink
):
    async with traced_server(tmp_path, sink) as server:
        await server.inference.Generate(request(), metadata=COMES_WITH)
        async for _ in server.inference.StreamGenerate(request(), metadata=COMES_WITH):
            pass

    for method in ("Generate", "StreamGenerate"):
        (call,) = sink.named(f"antiphon.v1.InferenceService/{method}")
        assert (call.trace_id, call.parent_id) == (TRACE, PARENT)
        assert call.span.kind == Span.SPAN_KIND_SERVER
        assert call.attributes["rpc.system.name"] == "grpc"
        assert call.attributes["rpc.method"] == call.name
        assert call.attributes["rpc.response.status_code"] == "OK"
        assert call.attributes["client.address"] == "127.0.0.1"
        (chat,) = sink.below(call)
        assert (chat.name, chat.trace_id) == ("text_completion tiny", TRACE)
        assert chat.span.kind == Span.SPAN_KIND_INTERNAL
        assert is_inside(chat, call)
        check_whole(chat, sink)
    assert {span.trace_id for span in sink.spans} == {TRACE}


async def test_a_request_span_alone_says_what_was_asked_and_what_came(
    tmp_path: Path, sink: OtlpSink
):
    async with traced_server(tmp_path, sink) as server:
        call = server.inference.Generate(request())
        await call
        request_id = dict(await call.trailing_metadata())["x-request-id"]

    (chat,) = sink.named("text_completion tiny")
    assert (
        chat.attributes.items()
        >= {
            "gen_ai.operation.name": "text_completion",
            "gen_ai.provider.name": "antiphon",
            "gen_ai.request.model": "tiny",
            "gen_ai.request.max_tokens": 4,
            "gen_ai.request.temperature": 0.5,
            "gen_ai.request.seed": 11,
            "gen_ai.response.id": request_id,
            "gen_ai.response.finish_reasons": ["length"],
            "gen_ai.usage.output_tokens": 4,
            "antiphon.request.id": request_id,
            "antiphon.outcome": "completed",
        }.items()
    )
    assert "gen_ai.conversation.id" not in chat.attributes
    for other in sink.spans:
        if other.span_id != chat.span_id:
            assert not [key for key in other.attributes if key.startswith("gen_ai.")], other.name
    assert not any("one two three" in str(span.span) for span in sink.spans)


async def test_spans_name_their_service(tmp_path: Path, sink: OtlpSink):
    async with traced_server(tmp_path, sink, "telemetry.service_name=answers") as server:
        await server.inference.Generate(request())

    resources = [span.resource for span in sink.spans]
    assert {resource["service.name"] for resource in resources} == {"answers"}
    assert all(resource["service.version"] for resource in resources)
    assert len({resource["service.instance.id"] for resource in resources}) == 1


async def test_requests_of_a_multiplexed_stream_each_have_a_span(tmp_path: Path, sink: OtlpSink):
    own = "cd" * 16
    async with traced_server(tmp_path, sink) as server:
        call = server.inference.MultiplexGenerate(metadata=COMES_WITH)
        await call.write(MultiplexGenerateRequest(tag=1, generate=request()))
        await call.write(
            MultiplexGenerateRequest(
                tag=2, generate=request(), traceparent=f"00-{own}-{'12' * 8}-01"
            )
        )
        await call.write(MultiplexGenerateRequest(tag=3, generate=request(200)))
        await call.write(MultiplexGenerateRequest(tag=3, cancel=CancelGeneration()))
        await call.done_writing()
        async for _ in call:
            pass

    (stream,) = sink.named("antiphon.v1.InferenceService/MultiplexGenerate")
    below = sink.below(stream)
    assert {span.attributes["antiphon.outcome"] for span in below} == {"completed", "cancelled"}
    (elsewhere,) = [span for span in sink.named("text_completion tiny") if span.trace_id == own]
    assert elsewhere.links == {"stream": stream.span_id}
    assert len(below) == 2


@pytest.mark.parametrize("method", ["Generate", "StreamGenerate"])
async def test_a_cancelled_request_and_its_call_say_so(
    tmp_path: Path, sink: OtlpSink, method: str, records: list[logging.LogRecord]
):
    engine = FakeEngine()
    async with traced_server(tmp_path, sink, engine=engine) as server:
        engine.hold()
        call = getattr(server.inference, method)(request(200), metadata=COMES_WITH)
        reading = asyncio.ensure_future(read_all(call))
        await submitted(engine)
        engine.step()
        call.cancel()
        with pytest.raises((asyncio.CancelledError, grpc.aio.AioRpcError)):
            await reading
        await server.server.supervision.wait_idle(30)

    (served,) = sink.named(f"antiphon.v1.InferenceService/{method}")
    (chat,) = sink.below(served)
    assert served.attributes["rpc.response.status_code"] == "CANCELLED"
    assert chat.attributes["antiphon.outcome"] == "cancelled"
    assert chat.span.status.code == Status.STATUS_CODE_UNSET
    assert (served.trace_id, chat.trace_id) == (TRACE, TRACE)
    said = " ".join(record.getMessage() for record in records)
    assert "ifferent Context" not in said
    assert "ailed to detach" not in said


@pytest.mark.parametrize("method", ["Generate", "StreamGenerate"])
async def test_a_failed_request_has_an_error_and_why(tmp_path: Path, sink: OtlpSink, method: str):
    engine = FakeEngine()
    async with traced_server(tmp_path, sink, engine=engine) as server:
        engine.hold()
        call = getattr(server.inference, method)(request(200), metadata=COMES_WITH)
        reading = asyncio.ensure_future(read_all(call))
        await submitted(engine)
        engine.set_state(EngineState.DOWN)
        with pytest.raises(grpc.aio.AioRpcError):
            await reading

    (served,) = sink.named(f"antiphon.v1.InferenceService/{method}")
    (chat,) = sink.below(served)
    assert served.attributes["rpc.response.status_code"] == "UNAVAILABLE"
    assert served.attributes["error.type"] == "UNAVAILABLE"
    assert served.span.status.code == Status.STATUS_CODE_ERROR
    assert chat.attributes["error.type"] == "ENGINE_DOWN"
    assert chat.span.status.code == Status.STATUS_CODE_ERROR
    assert {span.name for span in sink.below(chat)} == {"render", "queue"}


async def test_a_refused_request_has_an_error_that_is_its_callers(tmp_path: Path, sink: OtlpSink):
    async with traced_server(tmp_path, sink) as server:
        asked = request()
        asked.config.sampling.temperature = -1
        with pytest.raises(grpc.aio.AioRpcError):
            await server.inference.Generate(asked, metadata=COMES_WITH)

    (served,) = sink.named("antiphon.v1.InferenceService/Generate")
    (chat,) = sink.below(served)
    assert served.attributes["rpc.response.status_code"] == "INVALID_ARGUMENT"
    assert served.span.status.code == Status.STATUS_CODE_UNSET
    assert chat.attributes["error.type"] == "INVALID_FIELD"


async def test_a_call_that_is_aborted_or_unknown_keeps_its_true_status(
    tmp_path: Path, sink: OtlpSink
):
    async with traced_server(tmp_path, sink) as server:
        with pytest.raises(grpc.aio.AioRpcError):
            await server.sessions.GetTurn(GetTurnRequest(name="sessions/a/turns/t"))

    (served,) = sink.named("antiphon.v1.SessionService/GetTurn")
    assert served.attributes["rpc.response.status_code"] == "NOT_FOUND"
    assert served.attributes["antiphon.failure_reason"] == "SESSION_NOT_FOUND"


async def test_content_is_told_only_where_that_was_asked_for_and_cut(
    tmp_path: Path, sink: OtlpSink
):
    settings = ("telemetry.capture_content=true", "telemetry.max_content_bytes=3")
    async with traced_server(tmp_path, sink, *settings) as server:
        await server.inference.Generate(request())

    (chat,) = sink.named("text_completion tiny")
    assert chat.attributes["input.value"] == "one"
    assert '"content": "one"' in str(chat.attributes["gen_ai.input.messages"])
    assert len(str(chat.attributes["output.value"]).encode()) <= 3


@pytest.mark.parametrize("kept", ["failed", "slow", "neither"])
async def test_what_went_wrong_is_told_though_it_was_not_sampled(
    tmp_path: Path, sink: OtlpSink, kept: str
):
    slow = "telemetry.slow_first_token_s=" + ("0.000001" if kept == "slow" else "1000")
    async with traced_server(tmp_path, sink, "telemetry.sample_ratio=0", slow) as server:
        asked = request()
        if kept == "failed":
            asked.config.sampling.temperature = -1
            with pytest.raises(grpc.aio.AioRpcError):
                await server.inference.Generate(asked)
        else:
            await server.inference.Generate(asked)
        await server.sessions.CreateSession(CreateSessionRequest(session_id="a"))

    names = {span.name for span in sink.spans}
    assert "antiphon.v1.SessionService/CreateSession" not in names
    if kept == "neither":
        assert not names
        return
    (call,) = sink.named("antiphon.v1.InferenceService/Generate")
    (chat,) = sink.below(call)
    assert chat.attributes["antiphon.kept_for"] == {"failed": "error"}.get(kept, kept)


async def test_a_parents_decision_holds(tmp_path: Path, sink: OtlpSink):
    unsampled = [("traceparent", f"00-{TRACE}-{PARENT}-00")]
    async with traced_server(tmp_path, sink, "telemetry.sample_ratio=0") as server:
        await server.inference.Generate(request(), metadata=COMES_WITH)
        await server.inference.Generate(request(), metadata=unsampled)
        await server.inference.Generate(request())

    assert len(sink.named("text_completion tiny")) == 1
