"""The gRPC servers of the two ports: their transport options and their addresses."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import grpc

from antiphon_engine.api.errors import StartupError
from antiphon_server.answer_size import MAX_ANSWER_BYTES
from antiphon_server.config import ServerConfig
from antiphon_server.listen import (
    Address,
    Binding,
    TcpAddress,
    bind,
    is_local,
    parse_address,
    parse_mode,
)

_AGE_MARGIN_S: Final = 5.0
_MAX_INT32: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Port:
    """A port that is taken and not served yet."""

    server: grpc.aio.Server
    address: Address


@dataclass(frozen=True, slots=True)
class Ports:
    """Both ports."""

    main: Port
    admin: Port


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """What stands before the services of a port."""

    interceptors: Sequence[grpc.aio.ServerInterceptor]
    credentials: grpc.ServerCredentials | None
    """What encrypts it; None: nothing does."""


def take_ports(config: ServerConfig, *, main: Guard, admin: Guard) -> Ports:
    """Takes both ports; nobody is served before their servers are started.

    Raises:
        StartupError: an address is malformed, can't be had, or is open to others without leave.
    """
    addresses = check_addresses(config)
    return Ports(
        main=_take(config, addresses["server.listen"], "server.listen", main),
        admin=_take(config, addresses["server.admin_listen"], "server.admin_listen", admin),
    )


def check_addresses(config: ServerConfig) -> Mapping[str, Address]:
    """Checks how the addresses are written, without taking them, and returns them by setting.

    Raises:
        StartupError: one is malformed, or is open to others without leave.
    """
    if bool(config.tls_cert) != bool(config.tls_key):
        missing = "server.tls_key" if config.tls_cert else "server.tls_cert"
        raise StartupError(f"{missing} is not set; a certificate and its key go together")
    if config.tls_client_ca and not config.tls_cert:
        raise StartupError("server.tls_client_ca needs server.tls_cert and server.tls_key")
    parse_mode(config.socket_mode, key="server.socket_mode")
    named = {"server.listen": config.listen, "server.admin_listen": config.admin_listen}
    addresses = {key: check_address(text, key, config) for key, text in named.items()}
    main, admin = addresses.values()
    if main == admin and not (isinstance(main, TcpAddress) and main.port == 0):
        raise StartupError(
            f"server.admin_listen is {config.admin_listen!r}, as server.listen is; each needs an"
            " address of its own"
        )
    return addresses


def check_address(text: str, key: str, config: ServerConfig) -> Address:
    """Checks how an address is written, without taking it, and returns it.

    Raises:
        StartupError: it is malformed, or is open to others without leave.
    """
    address = parse_address(text, key=key)
    if config.insecure or is_local(address):
        return address
    missing = None
    if not (config.tokens_file or config.tls_client_ca):
        missing = "callers are not asked for credentials; set server.tokens_file"
    elif not config.tls_cert:
        missing = "tokens would travel in the clear; set server.tls_cert and server.tls_key"
    if missing:
        raise StartupError(
            f"{key} is {text!r}, which others reach, and {missing}, listen on 127.0.0.1, or set "
            "server.insecure = true (--insecure) in a closed network"
        )
    return address


def transport_options(config: ServerConfig) -> list[tuple[str, int]]:
    """Returns the gRPC options of a port."""
    keepalive_interval_ms = round(config.keepalive_interval_s * 1000)
    keepalive_timeout_ms = round(config.keepalive_timeout_s * 1000)
    min_ping_interval_ms = round(config.min_ping_interval_s * 1000)
    return [
        ("grpc.so_reuseport", 0),
        ("grpc.max_receive_message_length", config.max_message_bytes),
        # Answers are held to less where they are made, with a reason; this is the backstop.
        ("grpc.max_send_message_length", MAX_ANSWER_BYTES + (1 << 20)),
        ("grpc.max_concurrent_streams", config.max_streams),
        ("grpc.max_allowed_incoming_connections", config.max_connections),
        ("grpc.keepalive_time_ms", keepalive_interval_ms),
        ("grpc.keepalive_timeout_ms", keepalive_timeout_ms),
        # A ping of the transport's own that is under way stands in for one of these; left alone it
        # would be waited for a minute.
        ("grpc.http2.ping_timeout_ms", keepalive_timeout_ms),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", min_ping_interval_ms),
        ("grpc.http2.min_ping_interval_without_data_ms", min_ping_interval_ms),
        *_age_options(config),
    ]


def _age_options(config: ServerConfig) -> Iterator[tuple[str, int]]:
    """Yields what makes clients open a new connection for further calls.

    The transport cuts off what is left, and varies the age by a tenth. A stream is told in band at
    its own age, and may have begun just before the connection took no more; so the transport waits
    until that must have been, and the grace behind it.
    """
    age_s, grace_s = config.max_connection_age_s, config.max_connection_age_grace_s
    if age_s:
        yield "grpc.max_connection_age_ms", min(round(age_s * 1000), _MAX_INT32)
        last_s = 1.2 * age_s + grace_s + _AGE_MARGIN_S
        yield "grpc.max_connection_age_grace_ms", min(round(last_s * 1000), _MAX_INT32)


def _take(config: ServerConfig, address: Address, key: str, guard: Guard) -> Port:
    server = grpc.aio.server(interceptors=guard.interceptors, options=transport_options(config))
    mode = parse_mode(config.socket_mode, key="server.socket_mode")
    return Port(server, bind(server, address, key=key, how=Binding(guard.credentials, mode)))
