"""The status that is told of a call is the one that its caller got, however it ended."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import grpc
import pytest
from antiphon.v1 import inference_pb2, inference_pb2_grpc

from antiphon_engine.api.errors import AntiphonError, ErrorReason
from antiphon_server.access.authentication import let_anyone_in
from antiphon_server.interceptors import CallHandling, CallInterceptor
from antiphon_server.offload import Offload
from antiphon_server.supervision import Supervision
from antiphon_server.telemetry.request_record import CallRecord, RequestRecord
from antiphon_server.telemetry.telemetry import Telemetry


@dataclass
class KeepsCalls:
    """A RecordSink."""

    calls: list[CallRecord] = field(default_factory=list)

    def call_ended(self, record: CallRecord) -> None:
        self.calls.append(record)

    def request_ended(self, record: RequestRecord) -> None:
        raise AssertionError("no request is handled here")

    async def close(self, limit_s: float) -> None:
        pass


class Inference(inference_pb2_grpc.InferenceServiceServicer):
    """Ends calls as the test says; has no other methods."""

    def __init__(self) -> None:
        self.way = "ok"
        self.entered = asyncio.Event()

    async def _end(self, context) -> None:
        self.entered.set()
        if self.way == "refused":
            raise AntiphonError(ErrorReason.OVERLOADED, "too much waits")
        if self.way == "aborted":
            await context.abort(grpc.StatusCode.OUT_OF_RANGE, "no")
        if self.way == "uncaught":
            raise KeyError("a fault")
        if self.way in ("cancelled", "late"):
            await asyncio.Event().wait()

    async def Generate(self, request, context):
        await self._end(context)
        return inference_pb2.GenerateResponse()

    async def StreamGenerate(self, request, context):
        yield inference_pb2.StreamGenerateResponse()
        await self._end(context)


@dataclass
class Served:
    inference: Inference
    sink: KeepsCalls
    supervision: Supervision
    channel: grpc.aio.Channel
    stub: inference_pb2_grpc.InferenceServiceStub


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    sink, inference, supervision = KeepsCalls(), Inference(), Supervision()
    offload = Offload(num_threads=1, max_pending=8)
    interceptor = CallInterceptor(
        CallHandling(
            count_call=supervision.call,
            authenticate=let_anyone_in,
            offload=offload,
            draw_request_id=lambda: "r",
            telemetry=Telemetry(sinks=[sink]),
        )
    )
    server = grpc.aio.server(interceptors=[interceptor])
    inference_pb2_grpc.add_InferenceServiceServicer_to_server(inference, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        yield Served(inference, sink, supervision, channel, stub)
    await server.stop(0)
    offload.close()


async def call_once(served: Served, method: str, way: str) -> grpc.StatusCode:
    """Makes a call, and returns the status that its caller got."""
    served.inference.way = way
    timeout = 1.5 if way == "late" else 60
    call = getattr(served.stub, method)(inference_pb2.GenerateRequest(), timeout=timeout)
    reading = asyncio.ensure_future(read(call))
    if way == "cancelled":
        await served.inference.entered.wait()
        call.cancel()
    await asyncio.wait({reading})
    if not reading.cancelled():
        reading.exception()
    return await call.code()


async def read(call: grpc.aio.Call) -> None:
    if isinstance(call, grpc.aio.UnaryUnaryCall):
        await call
    else:
        async for _ in call:
            pass


@pytest.mark.parametrize("method", ["Generate", "StreamGenerate"])
@pytest.mark.parametrize(
    ("way", "reason"),
    [
        ("ok", ""),
        ("refused", "OVERLOADED"),
        ("aborted", ""),
        ("uncaught", "INTERNAL"),
        ("cancelled", ""),
        ("late", ""),
    ],
)
async def test_a_call_is_told_once_with_its_callers_status(
    served: Served, method: str, way: str, reason: str
):
    code = await call_once(served, method, way)
    await served.supervision.wait_idle(30)

    (told,) = served.sink.calls
    assert (told.code, told.reason) == (code.name, reason)
    assert told.method == f"antiphon.v1.InferenceService/{method}"
    assert told.peer.startswith("ipv4:127.0.0.1:")
    assert told.started_ns <= told.ended_ns


async def test_a_method_that_the_service_does_not_have_is_told_as_such(served: Served):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await served.stub.ValidateConstraint(inference_pb2.ValidateConstraintRequest())

    (told,) = served.sink.calls
    assert told.code == caught.value.code().name == "UNIMPLEMENTED"


async def test_calls_to_methods_that_nobody_serves_are_told_without_their_names(served: Served):
    unknown = served.channel.unary_unary("/antiphon.v1.InferenceService/MadeUp")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await unknown(b"")

    (told,) = served.sink.calls
    assert told.code == caught.value.code().name == "UNIMPLEMENTED"
    assert told.method == "_OTHER"
    assert told.place is None
