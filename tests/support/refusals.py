"""Reads how calls fail."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import grpc
import pytest
from antiphon.v1.inference_pb2 import GenerateRequest

from support.answers import LIMIT_S
from support.server import RunningServer, details_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A failed call's status and details."""

    code: grpc.StatusCode
    reason: str
    message: str
    metadata: dict[str, str]


async def refusal_of(call: Callable[[], Awaitable[object]]) -> Refusal:
    """Makes a call that must fail."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call()
    info = details_of(caught.value)["ErrorInfo"]
    return Refusal(
        code=caught.value.code(),
        reason=info.reason,
        message=caught.value.details() or "",
        metadata=dict(info.metadata),
    )


async def refusal_of_both(server: RunningServer, request: GenerateRequest) -> Refusal:
    """Asks unary and streaming, checks that both are refused alike, and returns how."""

    async def stream() -> None:
        call = server.inference.StreamGenerate(request, timeout=LIMIT_S)
        said = [response async for response in call]
        assert not said

    streamed = await refusal_of(stream)
    unary = await refusal_of(lambda: server.inference.Generate(request, timeout=LIMIT_S))
    assert unary.metadata.pop("request_id", None) != streamed.metadata.pop("request_id", "")
    assert unary == streamed
    return unary
