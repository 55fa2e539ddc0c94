"""InferenceService alone on a loopback port, with the errors of the real server."""

import itertools
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass

import grpc
from antiphon.v1 import inference_pb2_grpc
from antiphon.v1.inference_pb2 import GenerateRequest
from google.rpc import error_details_pb2, status_pb2

from antiphon_server.access.authentication import let_anyone_in
from antiphon_server.generator import Generator
from antiphon_server.interceptors import CallHandling, CallInterceptor
from antiphon_server.long_calls import LongCalls
from antiphon_server.offload import Offload
from antiphon_server.request_preparation import RequestPreparation
from antiphon_server.served_model import ServedModel
from antiphon_server.services.inference import InferenceService
from antiphon_server.services.multiplex import MultiplexLimits


@dataclass(frozen=True, slots=True)
class InferenceServer:
    """What tests use of it."""

    target: str
    generator: Generator
    channel: grpc.aio.Channel
    stub: inference_pb2_grpc.InferenceServiceStub
    long_calls: LongCalls

    async def failures_of(self, request: GenerateRequest) -> list[grpc.aio.AioRpcError]:
        """Sends a request by both methods and returns how they fail."""
        failures = []
        for call in (self.stub.Generate(request), self.stub.StreamGenerate(request)):
            try:
                await self.read_all(call)
            except grpc.aio.AioRpcError as error:
                failures.append(error)
        assert len(failures) == 2
        return failures

    async def read_all(self, call: object) -> list[object]:
        """Reads a call of either kind to its end."""
        if isinstance(call, grpc.aio.UnaryUnaryCall):
            return [await call]
        assert isinstance(call, grpc.aio.UnaryStreamCall)
        return [response async for response in call]

    def reason_of(self, error: grpc.aio.AioRpcError) -> str:
        """The reason in a failure's details."""
        info = error_details_pb2.ErrorInfo()
        assert _status(error).details[0].Unpack(info)
        return str(info.reason)

    def retry_delay_of(self, error: grpc.aio.AioRpcError) -> float:
        """The delay in a failure's details, in seconds."""
        retry = error_details_pb2.RetryInfo()
        (found,) = [d for d in _status(error).details if d.Is(retry.DESCRIPTOR)]
        found.Unpack(retry)
        return float(retry.retry_delay.ToTimedelta().total_seconds())


@asynccontextmanager
async def inference_server(
    model: ServedModel,
    offload: Offload,
    *,
    generator: Generator | None = None,
    multiplex_limits: MultiplexLimits | None = None,
) -> AsyncIterator[InferenceServer]:
    """Serves one model until the block ends."""
    generator = generator or Generator(model, offload=offload)
    request_ids = itertools.count(1)
    interceptor = CallInterceptor(
        CallHandling(
            count_call=nullcontext,
            authenticate=let_anyone_in,
            offload=offload,
            draw_request_id=lambda: f"request-{next(request_ids)}",
        )
    )
    server = grpc.aio.server(interceptors=[interceptor])
    preparation = RequestPreparation(
        {model.name: model},
        {model.name: generator},
        offload=offload,
        random_source=random.Random(1),
    )
    long_calls = LongCalls()
    service = InferenceService(
        preparation,
        offload=offload,
        long_calls=long_calls,
        multiplex_limits=multiplex_limits or MultiplexLimits(),
    )
    inference_pb2_grpc.add_InferenceServiceServicer_to_server(service, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}")
    try:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        yield InferenceServer(f"127.0.0.1:{port}", generator, channel, stub, long_calls)
    finally:
        await channel.close()
        await server.stop(0)


def _status(error: grpc.aio.AioRpcError) -> status_pb2.Status:
    trailers = dict(error.trailing_metadata() or ())
    return status_pb2.Status.FromString(trailers["grpc-status-details-bin"])
