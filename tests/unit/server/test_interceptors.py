import asyncio
import contextlib
import io
import itertools
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

import grpc
import pytest
from antiphon.v1 import (
    inference_pb2,
    inference_pb2_grpc,
    session_pb2,
    session_pb2_grpc,
    types_pb2,
)
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from antiphon_engine.api.errors import AntiphonError, ErrorReason, FieldViolation, InvalidRequest
from antiphon_server.access.authentication import let_anyone_in
from antiphon_server.config import LoggingConfig
from antiphon_server.interceptors import REQUEST_ID_KEY, CallHandling, CallInterceptor
from antiphon_server.logs import configure_logging
from antiphon_server.offload import Offload
from antiphon_server.supervision import Supervision

REFUSAL = AntiphonError(
    ErrorReason.OVERLOADED, "too much waits", metadata={"limit": "7"}, retry_delay_s=2
)


class Inference(inference_pb2_grpc.InferenceServiceServicer):
    """Answers with what a test says; streams in the style that yields."""

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self.num_calls = 0
        self.let_go = asyncio.Event()
        self.endless = False

    async def Generate(self, request, context):
        self.num_calls += 1
        if self.error:
            raise self.error
        return inference_pb2.GenerateResponse()

    async def StreamGenerate(self, request, context):
        self.num_calls += 1
        try:
            yield inference_pb2.StreamGenerateResponse()
            while self.endless:
                yield inference_pb2.StreamGenerateResponse(
                    delta=types_pb2.Delta(text="x" * 100_000)
                )
            if self.error:
                raise self.error
        finally:
            self.let_go.set()


class Sessions(session_pb2_grpc.SessionServiceServicer):
    """Streams in the style that reads and writes."""

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self.endless = False
        self.ended_by: BaseException | None = None
        self.let_go = asyncio.Event()

    async def Converse(self, request_iterator, context):
        try:
            async for _ in request_iterator:
                await context.write(session_pb2.ConverseResponse())
                while self.endless:
                    delta = types_pb2.Delta(text="x" * 100_000)
                    event = session_pb2.TurnEvent(delta=delta)
                    await context.write(session_pb2.ConverseResponse(turn_event=event))
                if self.error:
                    raise self.error
        except BaseException as error:
            self.ended_by = error
            raise
        finally:
            self.let_go.set()


@dataclass
class Served:
    inference: Inference
    sessions: Sessions
    supervision: Supervision
    stub: inference_pb2_grpc.InferenceServiceStub
    session_stub: session_pb2_grpc.SessionServiceStub
    channel: grpc.aio.Channel


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    supervision = Supervision()
    ids = (f"r-{number}" for number in itertools.count(1))
    offload = Offload(num_threads=1, max_pending=8)
    server = grpc.aio.server(
        interceptors=[
            CallInterceptor(
                CallHandling(
                    count_call=supervision.call,
                    authenticate=let_anyone_in,
                    offload=offload,
                    draw_request_id=lambda: next(ids),
                )
            )
        ]
    )
    inference, sessions = Inference(), Sessions()
    inference_pb2_grpc.add_InferenceServiceServicer_to_server(inference, server)
    session_pb2_grpc.add_SessionServiceServicer_to_server(sessions, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield Served(
            inference,
            sessions,
            supervision,
            inference_pb2_grpc.InferenceServiceStub(channel),
            session_pb2_grpc.SessionServiceStub(channel),
            channel,
        )
    await server.stop(0)
    offload.close()


async def unary(served: Served, error: BaseException | None) -> None:
    served.inference.error = error
    await served.stub.Generate(inference_pb2.GenerateRequest())


async def server_stream(served: Served, error: BaseException | None) -> None:
    served.inference.error = error
    async for _ in served.stub.StreamGenerate(inference_pb2.GenerateRequest()):
        pass


async def bidi(served: Served, error: BaseException | None) -> None:
    served.sessions.error = error
    async for _ in served.session_stub.Converse(iter([session_pb2.ConverseRequest()])):
        pass


Call = Callable[[Served, BaseException | None], Awaitable[None]]
every_kind = pytest.mark.parametrize("call", [unary, server_stream, bidi])


async def details_of(error: grpc.aio.AioRpcError, kind: type) -> list[object]:
    found = []
    for packed in rpc_status.from_call(_Trailers(error)).details:
        message = kind()
        if packed.Unpack(message):
            found.append(message)
    return found


class _Trailers:
    """What from_call wants of a call."""

    def __init__(self, error: grpc.aio.AioRpcError) -> None:
        self.code = error.code
        self.details = error.details
        self.trailing_metadata = lambda: tuple(error.trailing_metadata() or ())


@every_kind
async def test_refusal_reaches_the_caller_with_code_and_details(served: Served, call: Call) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call(served, REFUSAL)

    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert caught.value.details() == "too much waits"
    (info,) = await details_of(caught.value, error_details_pb2.ErrorInfo)
    assert (info.reason, info.domain, dict(info.metadata)) == (
        "OVERLOADED",
        "antiphon.dev",
        {"limit": "7"},
    )
    (retry,) = await details_of(caught.value, error_details_pb2.RetryInfo)
    assert retry.retry_delay.seconds == 2


@every_kind
async def test_call_has_one_id_in_details_and_trailers(served: Served, call: Call) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call(served, REFUSAL)

    (request_info,) = await details_of(caught.value, error_details_pb2.RequestInfo)
    trailers = dict(caught.value.trailing_metadata() or ())
    assert request_info.request_id == trailers[REQUEST_ID_KEY] == "r-1"


async def test_answered_call_has_its_id_in_the_trailers(served: Served) -> None:
    call = served.stub.Generate(inference_pb2.GenerateRequest())
    await call

    assert dict(await call.trailing_metadata())[REQUEST_ID_KEY] == "r-1"


async def test_fields_at_fault_reach_the_caller(served: Served) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await unary(served, InvalidRequest(FieldViolation("config.stop", "is odd")))

    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    (bad,) = await details_of(caught.value, error_details_pb2.BadRequest)
    assert bad.field_violations[0].field == "config.stop"


@pytest.mark.usefixtures("logging_as_before")
@every_kind
async def test_uncaught_error_is_internal_without_its_text_and_logged_once_with_it(
    served: Served, call: Call
) -> None:
    log = io.StringIO()
    configure_logging(LoggingConfig(format="json"), log)

    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call(served, ZeroDivisionError("the secret"))

    assert caught.value.code() is grpc.StatusCode.INTERNAL
    assert "secret" not in str(caught.value.details())
    assert "r-1" in str(caught.value.details())
    lines = [json.loads(line) for line in log.getvalue().splitlines()]
    (failed,) = [line for line in lines if line["level"] == "error"]
    assert failed["request_id"] == "r-1"
    assert "ZeroDivisionError: the secret" in failed["exception"]


@every_kind
async def test_call_is_counted_until_it_ends(served: Served, call: Call) -> None:
    with contextlib.suppress(grpc.aio.AioRpcError):
        await call(served, REFUSAL)

    assert await served.supervision.wait_idle(60) == 0


async def test_draining_server_refuses_calls_with_a_reason(served: Served) -> None:
    served.supervision.begin_drain()

    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await unary(served, None)

    (info,) = await details_of(caught.value, error_details_pb2.ErrorInfo)
    assert info.reason == "DRAINING"
    assert served.inference.num_calls == 0


@pytest.mark.usefixtures("logging_as_before")
@pytest.mark.parametrize("endless", [False, True])
async def test_cancelled_stream_lets_go_of_what_it_holds_and_logs_no_error(
    served: Served, endless: bool
) -> None:
    """With `endless`, the handler sits in a blocked write when the cancellation comes."""
    log = io.StringIO()
    configure_logging(LoggingConfig(format="json"), log)
    served.inference.endless = endless
    call = served.stub.StreamGenerate(inference_pb2.GenerateRequest())
    await call.read()
    if endless:
        await asyncio.sleep(0.2)

    call.cancel()

    await asyncio.wait_for(served.inference.let_go.wait(), 60)
    assert await served.supervision.wait_idle(60) == 0
    assert '"level": "error"' not in log.getvalue()


@pytest.mark.usefixtures("logging_as_before")
async def test_handler_whose_blocked_write_fails_as_the_caller_leaves_has_not_failed(
    served: Served,
) -> None:
    log = io.StringIO()
    configure_logging(LoggingConfig(format="json"), log)
    served.sessions.endless = True
    call = served.session_stub.Converse(iter([session_pb2.ConverseRequest()]))
    await call.read()
    await asyncio.sleep(0.2)

    call.cancel()

    await asyncio.wait_for(served.sessions.let_go.wait(), 60)
    assert await served.supervision.wait_idle(60) == 0
    assert served.sessions.ended_by is not None
    assert '"level": "error"' not in log.getvalue()


@pytest.mark.parametrize("padding_bytes", [0, 100_000])
async def test_unknown_field_is_refused_by_path_and_number(
    served: Served, padding_bytes: int
) -> None:
    config = types_pb2.GenerationConfig(stop=types_pb2.StopConditions(max_output_tokens=1))
    config.stop.MergeFromString(b"\xc0\x3e\x05")  # Field 1000.
    request = inference_pb2.GenerateRequest(
        prompt=types_pb2.Prompt(text="x" * padding_bytes), config=config
    )

    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await served.stub.Generate(request)

    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    (bad,) = await details_of(caught.value, error_details_pb2.BadRequest)
    assert "config.stop" in bad.field_violations[0].field
    assert "1000" in caught.value.details()
    assert served.inference.num_calls == 0


@pytest.mark.usefixtures("logging_as_before")
@pytest.mark.parametrize("data", [b"\xff\xff\xff\xff", b"\x0a\x05ab", b"\x0a\x02\xff\xfe"])
@pytest.mark.parametrize(
    ("method", "streams_requests"),
    [
        ("InferenceService/Generate", False),
        ("InferenceService/StreamGenerate", False),
        ("SessionService/Converse", True),
    ],
)
async def test_bytes_that_are_no_message_are_the_callers_fault(
    served: Served, method: str, streams_requests: bool, data: bytes
) -> None:
    log = io.StringIO()
    configure_logging(LoggingConfig(format="json"), log)
    path = f"/antiphon.v1.{method}"
    call = (
        served.channel.stream_stream(path)(iter([data]))
        if streams_requests
        else served.channel.unary_stream(path)(data)
    )

    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call.read()

    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    (info,) = await details_of(caught.value, error_details_pb2.ErrorInfo)
    assert info.reason == "INVALID_FIELD"
    assert "can't be read" in caught.value.details()
    assert served.inference.num_calls == 0
    assert '"level": "error"' not in log.getvalue()


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("InferenceService.ValidateConstraint", lambda s: s.stub.ValidateConstraint(
            inference_pb2.ValidateConstraintRequest())),
        ("SessionService.ForkSession", lambda s: s.session_stub.ForkSession(
            session_pb2.ForkSessionRequest())),
        ("SessionService.StreamTurnEvents", lambda s: s.session_stub.StreamTurnEvents(
            session_pb2.StreamTurnEventsRequest()).read()),
    ],
)  # fmt: skip
async def test_method_that_is_not_built_is_refused_by_name(
    served: Served, name: str, call: Callable[[Served], Awaitable[object]]
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call(served)

    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
    (info,) = await details_of(caught.value, error_details_pb2.ErrorInfo)
    assert (info.reason, info.metadata["capability"]) == ("UNSUPPORTED_FEATURE", name)
