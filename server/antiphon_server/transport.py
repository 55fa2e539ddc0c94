"""The gRPC servers of the two ports: their transport options and their addresses."""

from collections.abc import Sequence
from dataclasses import dataclass

import grpc

from antiphon_engine.api.errors import StartupError
from antiphon_server.answer_size import MAX_ANSWER_BYTES
from antiphon_server.config import ServerConfig
from antiphon_server.listen import Address, bind, is_local, parse_address


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


def take_ports(
    config: ServerConfig,
    *,
    main_interceptors: Sequence[grpc.aio.ServerInterceptor],
    admin_interceptors: Sequence[grpc.aio.ServerInterceptor],
) -> Ports:
    """Takes both ports; nobody is served before their servers are started.

    Raises:
        StartupError: an address is malformed, can't be had, or is open to others without leave.
    """
    main = _checked_address(config.listen, "server.listen", insecure=config.insecure)
    admin = _checked_address(config.admin_listen, "server.admin_listen", insecure=config.insecure)
    return Ports(
        main=_take(config, main, "server.listen", main_interceptors),
        admin=_take(config, admin, "server.admin_listen", admin_interceptors),
    )


def check_addresses(config: ServerConfig) -> None:
    """Checks how the addresses are written, without taking them.

    Raises:
        StartupError: one is malformed, or is open to others without leave.
    """
    _checked_address(config.listen, "server.listen", insecure=config.insecure)
    _checked_address(config.admin_listen, "server.admin_listen", insecure=config.insecure)


def transport_options(config: ServerConfig) -> list[tuple[str, int]]:
    """Returns the gRPC options of a port."""
    keepalive_interval_ms = round(config.keepalive_interval_s * 1000)
    min_ping_interval_ms = round(config.min_ping_interval_s * 1000)
    return [
        ("grpc.so_reuseport", 0),
        ("grpc.max_receive_message_length", config.max_message_bytes),
        # Answers are held to less where they are made, with a reason; this is the backstop.
        ("grpc.max_send_message_length", MAX_ANSWER_BYTES + (1 << 20)),
        ("grpc.max_concurrent_streams", config.max_streams),
        ("grpc.max_allowed_incoming_connections", config.max_connections),
        ("grpc.keepalive_time_ms", keepalive_interval_ms),
        ("grpc.keepalive_timeout_ms", round(config.keepalive_timeout_s * 1000)),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", min_ping_interval_ms),
        ("grpc.http2.min_ping_interval_without_data_ms", min_ping_interval_ms),
    ]


def _checked_address(text: str, key: str, *, insecure: bool) -> Address:
    address = parse_address(text, key=key)
    if not insecure and not is_local(address):
        raise StartupError(
            f"{key} is {text!r}, which others reach, and this release asks nobody for credentials; "
            "listen on 127.0.0.1, or set server.insecure = true (--insecure) in a closed network"
        )
    return address


def _take(
    config: ServerConfig,
    address: Address,
    key: str,
    interceptors: Sequence[grpc.aio.ServerInterceptor],
) -> Port:
    server = grpc.aio.server(interceptors=interceptors, options=transport_options(config))
    return Port(server, bind(server, address, key=key))
