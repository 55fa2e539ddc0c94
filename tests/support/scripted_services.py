"""Services whose answers a test writes itself, on a loopback port: for what no server would do."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NoReturn

import grpc
from antiphon.v1 import (
    admin_pb2_grpc,
    inference_pb2_grpc,
    model_pb2_grpc,
    session_pb2_grpc,
)
from google.protobuf import any_pb2
from google.protobuf.message import Message
from google.rpc import status_pb2
from grpc import aio
from grpc_status import rpc_status


@asynccontextmanager
async def serving(
    *,
    inference: inference_pb2_grpc.InferenceServiceServicer | None = None,
    sessions: session_pb2_grpc.SessionServiceServicer | None = None,
    models: model_pb2_grpc.ModelServiceServicer | None = None,
    admin: admin_pb2_grpc.AdminServiceServicer | None = None,
    port: int = 0,
) -> AsyncIterator[str]:
    """Serves these, at a free port unless one is named, and yields the target to connect to."""
    server = aio.server()
    if inference is not None:
        inference_pb2_grpc.add_InferenceServiceServicer_to_server(inference, server)
    if sessions is not None:
        session_pb2_grpc.add_SessionServiceServicer_to_server(sessions, server)
    if models is not None:
        model_pb2_grpc.add_ModelServiceServicer_to_server(models, server)
    if admin is not None:
        admin_pb2_grpc.add_AdminServiceServicer_to_server(admin, server)
    port = server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


async def refuse(
    context: aio.ServicerContext, code: grpc.StatusCode, message: str, *details: Message
) -> NoReturn:
    """Ends the call with this status and these details."""
    packed = []
    for detail in details:
        packed.append(any_pb2.Any())
        packed[-1].Pack(detail)
    status = status_pb2.Status(code=code.value[0], message=message, details=packed)
    await context.abort_with_status(rpc_status.to_status(status))
    raise AssertionError("an aborted call goes no further")
