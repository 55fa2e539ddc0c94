"""The connection to one server and how calls go over it."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import TypeVar

import grpc
from google.protobuf import duration_pb2
from grpc import aio

from antiphon_client.errors import ErrorDetails, error_of, from_rpc_error
from antiphon_client.retry import Retrier, RetryPolicy

Request = TypeVar("Request")
Response = TypeVar("Response")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    """How a client behaves."""

    timeout_s: float = 60.0
    """The longest that a unary call may take, retries included, where the call names no limit."""
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    keepalive_time_s: float = 30.0
    """A ping after this long without traffic, also while no call runs."""
    keepalive_timeout_s: float = 10.0
    """The connection counts as lost when a ping has no answer for this long."""
    max_message_bytes: int = 16 << 20
    """The largest message taken in."""
    close_timeout_s: float = 5.0
    """How long closing waits for what runs."""
    use_http_proxy: bool = False
    """Whether connections go through the proxy that the environment names."""


class Connection:
    """A channel to `target`: HOST:PORT or unix:PATH, without transport security.

    Belongs to the event loop that it is first used on.
    """

    def __init__(self, target: str, options: ClientOptions) -> None:
        self.options = options
        self.channel = aio.insecure_channel(target, options=_channel_options(options))
        self._retrier = Retrier(policy=options.retry)

    async def unary(
        self,
        method: aio.UnaryUnaryMultiCallable[Request, Response],
        request: Request,
        *,
        timeout_s: float | None = None,
    ) -> Response:
        """Returns the answer; tries again where the server could not take the call now.

        Raises:
            ServerError: it failed.
        """

        async def attempt(left_s: float) -> Response:
            try:
                return await method(request, timeout=left_s)
            except aio.AioRpcError as error:
                raise from_rpc_error(error) from None

        return await self._retrier.run(
            attempt, timeout_s=self.options.timeout_s if timeout_s is None else timeout_s
        )

    async def close(self) -> None:
        """Ends the connection and with it every call that still runs."""
        await self.channel.close()


async def told(call: aio.UnaryStreamCall[Request, Response]) -> AsyncIterator[Response]:
    """Yields what a streamed call answers; cancels it where the reader leaves early.

    Raises:
        ServerError: the call failed.
    """
    try:
        async for response in call:
            yield response
    except aio.AioRpcError as error:
        raise from_rpc_error(error) from None
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        # The call was cancelled, not its reader.
        raise error_of(
            ErrorDetails(code=grpc.StatusCode.CANCELLED, message="the call was cancelled")
        ) from None
    finally:
        call.cancel()


def duration(seconds: float) -> duration_pb2.Duration:
    """Returns `seconds` as the contract writes them."""
    value = duration_pb2.Duration()
    value.FromNanoseconds(int(seconds * 1e9))
    return value


def _channel_options(options: ClientOptions) -> list[tuple[str, int]]:
    return [
        ("grpc.keepalive_time_ms", int(options.keepalive_time_s * 1000)),
        ("grpc.keepalive_timeout_ms", int(options.keepalive_timeout_s * 1000)),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.max_receive_message_length", options.max_message_bytes),
        ("grpc.max_send_message_length", -1),
        ("grpc.enable_retries", 0),
        ("grpc.enable_http_proxy", int(options.use_http_proxy)),
    ]
