"""Guards services of other packages, which know nothing of this project's errors."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import TYPE_CHECKING, TypeAlias, cast

import grpc
from google.protobuf.message import Message
from grpc.aio import ServicerContext

from antiphon_engine.api.errors import AntiphonError
from antiphon_server.status import CODES

if TYPE_CHECKING:
    from antiphon_server.access.authentication import Authenticate

Handler: TypeAlias = "grpc.RpcMethodHandler[Message, Message]"
_Requests = AsyncIterator[Message]
_Context = ServicerContext[Message, Message]
_Behavior = Callable[[_Requests, _Context], AsyncIterator[Message]]


def guarded(handler: Handler, authenticate: Authenticate) -> Handler:
    """Returns a handler of two streams that refuses callers without a credential."""
    behavior = cast("_Behavior", handler.stream_stream)

    async def answer(requests: _Requests, context: _Context) -> AsyncGenerator[Message, None]:
        try:
            authenticate(context)
        except AntiphonError as error:
            await context.abort(CODES[error.reason], error.message)
        async for response in behavior(requests, context):
            yield response

    made: Handler = grpc.stream_stream_rpc_method_handler(
        answer, handler.request_deserializer, handler.response_serializer
    )
    return made
