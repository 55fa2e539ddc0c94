"""The connection to one server and how calls go over it."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from typing import TypeVar

import grpc
from google.protobuf import duration_pb2
from grpc import aio

from antiphon_client.errors import ErrorDetails
from antiphon_client.failures import error_of, from_rpc_error
from antiphon_client.retry import Pace, Retrier, RetryPolicy

Request = TypeVar("Request")
Response = TypeVar("Response")


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsOptions:
    """How the connection is encrypted, and who vouches for whom. All in PEM."""

    ca: bytes | None = None
    """Who may have signed the server's certificate; None: whom the system trusts."""
    certificate: bytes | None = None
    """This client's own, for servers that ask for one; with `key`."""
    key: bytes | None = None
    server_name: str = ""
    """The name that the server's certificate must have; empty: the target's host."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    """How a client behaves."""

    timeout_s: float = 60.0
    """The longest that a unary call may take, retries included, where the call names no limit."""
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    """How unary calls are tried again."""
    reconnect: RetryPolicy = field(default_factory=lambda: RetryPolicy(max_delay_s=2.0))
    """How patiently a session's stream is opened again; the attempts are not counted."""
    reconnect_timeout_s: float = 60.0
    """How long a session goes without its server before its turns fail; 0: it never reconnects."""
    max_unacked_events: int = 256
    """How far the server may be ahead of the readers of a session's turns; 0: not bounded here."""
    tls: TlsOptions | None = None
    """None: the connection is not encrypted."""
    token: str | Callable[[], str] = ""
    """What says who calls; a function is asked before every call."""
    sends_token_unencrypted: bool = False
    """Whether the token may leave this machine over a connection that is not encrypted."""
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
    """A channel to `target`: HOST:PORT or unix:PATH.

    Belongs to the event loop that it is first used on.
    """

    def __init__(self, target: str, options: ClientOptions, pace: Pace | None = None) -> None:
        """Sets it up; the first call connects.

        Raises:
            ValueError: a token would leave this machine unencrypted.
        """
        if options.token and options.tls is None and not options.sends_token_unencrypted:
            _check_stays_here(target)
        self.options = options
        arguments = _channel_options(options)
        if options.tls is None:
            self.channel = aio.insecure_channel(target, options=arguments)
        else:
            self.channel = aio.secure_channel(target, _credentials(options.tls), options=arguments)
        self.pace = pace or Pace()
        self.retrier = Retrier(policy=options.retry, pace=self.pace)

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """What goes with every call."""
        token = self.options.token
        text = token() if callable(token) else token
        return (("authorization", f"Bearer {text}"),) if text else ()

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
                return await method(request, timeout=left_s, metadata=self.metadata)
            except aio.AioRpcError as error:
                raise from_rpc_error(error) from None

        return await self.retrier.run(
            attempt, timeout_s=self.options.timeout_s if timeout_s is None else timeout_s
        )

    async def close(self) -> None:
        """Ends the connection and with it every call that still runs."""
        await self.channel.close()


async def told(call: aio.UnaryStreamCall[Request, Response]) -> AsyncGenerator[Response, None]:
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


def _check_stays_here(target: str) -> None:
    host = target.removeprefix("dns:///").removeprefix("ipv4:").removeprefix("ipv6:")
    host = host.rpartition(":")[0].strip("[]") or host
    if host.startswith("unix") or host in ("localhost", "::1") or host.startswith("127."):
        return
    raise ValueError(
        f"the token would go to {target} unencrypted; encrypt the connection, or allow"
        " it explicitly"
    )


def _credentials(tls: TlsOptions) -> grpc.ChannelCredentials:
    if (tls.certificate is None) != (tls.key is None):
        raise ValueError("a client's certificate and its key go together; give both or none")
    return grpc.ssl_channel_credentials(tls.ca, tls.key, tls.certificate)


def _channel_options(options: ClientOptions) -> list[tuple[str, int | str]]:
    max_delay_ms = int(max(options.reconnect.max_delay_s, 0.1) * 1000)
    first_delay_ms = min(int(max(options.reconnect.first_delay_s, 0.1) * 1000), max_delay_ms)
    arguments: list[tuple[str, int | str]] = [
        ("grpc.keepalive_time_ms", int(options.keepalive_time_s * 1000)),
        ("grpc.keepalive_timeout_ms", int(options.keepalive_timeout_s * 1000)),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.initial_reconnect_backoff_ms", first_delay_ms),
        ("grpc.max_reconnect_backoff_ms", max_delay_ms),
        ("grpc.max_receive_message_length", options.max_message_bytes),
        ("grpc.max_send_message_length", -1),
        ("grpc.enable_retries", 0),
        ("grpc.enable_http_proxy", int(options.use_http_proxy)),
    ]
    if options.tls is not None and options.tls.server_name:
        arguments.append(("grpc.ssl_target_name_override", options.tls.server_name))
    return arguments
