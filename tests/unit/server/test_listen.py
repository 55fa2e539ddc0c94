import os
import socket
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
import pytest_asyncio

from antiphon_engine.api.errors import StartupError
from antiphon_server.config import ServerConfig
from antiphon_server.listen import SocketAddress, TcpAddress, bind, is_local, parse_address
from antiphon_server.transport import Guard, check_addresses, take_ports, transport_options

OPEN = Guard(interceptors=(), credentials=None)
KEY = "server.listen"


@pytest_asyncio.fixture
async def server() -> AsyncIterator[grpc.aio.Server]:
    made = grpc.aio.server(options=transport_options(ServerConfig()))
    yield made
    await made.stop(0)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:50051", TcpAddress("127.0.0.1", 50051)),
        ("[::]:0", TcpAddress("::", 0)),
        ("localhost:1", TcpAddress("localhost", 1)),
        ("unix:/run/a.sock", SocketAddress("/run/a.sock")),
    ],
)
def test_addresses_are_read_and_written_alike(
    text: str, address: TcpAddress | SocketAddress
) -> None:
    assert parse_address(text, key=KEY) == address
    assert str(address) == text


@pytest.mark.parametrize(
    "text",
    ["", "127.0.0.1", ":5", "::1:5", "[::1]", "a:-1", "a:65536", "a:x", "a:٣", "unix:", "[a:1"],
)
def test_malformed_address_is_refused_with_setting_and_value(text: str) -> None:
    with pytest.raises(StartupError) as caught:
        parse_address(text, key=KEY)

    assert str(caught.value).startswith(f"{KEY} is {text!r}")


def test_too_long_socket_path_is_refused_with_both_sizes() -> None:
    with pytest.raises(StartupError, match="has 201 bytes; the system takes 107"):
        parse_address("unix:/" + "a" * 200, key=KEY)


@pytest.mark.parametrize(
    ("text", "local"),
    [
        ("127.0.0.1:1", True),
        ("[::1]:1", True),
        ("localhost:1", True),
        ("unix:/a", True),
        ("0.0.0.0:1", False),
        ("[::]:1", False),
        ("10.0.0.1:1", False),
        ("example.org:1", False),
    ],
)
def test_addresses_that_others_reach_are_told_from_local_ones(text: str, local: bool) -> None:
    assert is_local(parse_address(text, key=KEY)) is local


async def test_free_port_is_taken_and_told(server: grpc.aio.Server) -> None:
    address = bind(server, TcpAddress("127.0.0.1", 0), key=KEY)

    assert isinstance(address, TcpAddress)
    assert address.port > 0


async def test_port_of_another_server_is_refused_by_number(server: grpc.aio.Server) -> None:
    taken = bind(server, TcpAddress("127.0.0.1", 0), key=KEY)
    assert isinstance(taken, TcpAddress)
    second = grpc.aio.server(options=transport_options(ServerConfig()))

    with pytest.raises(StartupError, match=f"{KEY}: can't listen on .*port {taken.port} is in use"):
        bind(second, taken, key=KEY)


async def test_port_of_another_program_is_refused_by_number(server: grpc.aio.Server) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]

        with pytest.raises(StartupError, match=f"port {port} is in use"):
            bind(server, TcpAddress("127.0.0.1", port), key=KEY)


async def test_transport_itself_shares_no_port(server: grpc.aio.Server) -> None:
    """What is tried before may have changed by the time the port is taken."""
    taken = bind(server, TcpAddress("127.0.0.1", 0), key=KEY)
    second = grpc.aio.server(options=transport_options(ServerConfig()))

    with pytest.raises(RuntimeError):
        second.add_insecure_port(str(taken))


async def test_foreign_address_is_refused_with_the_reason(server: grpc.aio.Server) -> None:
    with pytest.raises(StartupError, match="this machine has no such address"):
        bind(server, TcpAddress("192.0.2.1", 0), key=KEY)


async def test_unknown_host_is_refused_with_the_reason(server: grpc.aio.Server) -> None:
    with pytest.raises(StartupError, match="there is no such host"):
        bind(server, TcpAddress("no.such.host.invalid", 0), key=KEY)


async def test_stale_socket_file_is_replaced(server: grpc.aio.Server, tmp_path: Path) -> None:
    path = tmp_path / "a.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))

    bind(server, SocketAddress(str(path)), key=KEY)

    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))


async def test_socket_where_somebody_listens_is_left_alone(
    server: grpc.aio.Server, tmp_path: Path
) -> None:
    path = tmp_path / "a.sock"
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        other.listen(1)

        with pytest.raises(StartupError, match="the socket is in use by another process"):
            bind(server, SocketAddress(str(path)), key=KEY)

        assert stat.S_ISSOCK(os.lstat(path).st_mode)


async def test_file_that_is_no_socket_is_left_alone(
    server: grpc.aio.Server, tmp_path: Path
) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("dear diary")

    with pytest.raises(StartupError, match="a file of that name that is not a socket"):
        bind(server, SocketAddress(str(path)), key=KEY)

    assert path.read_text() == "dear diary"


async def test_missing_folder_of_a_socket_is_named(server: grpc.aio.Server, tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="the folder does not exist"):
        bind(server, SocketAddress(str(tmp_path / "none/a.sock")), key=KEY)


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "[::]:0"])
async def test_open_address_needs_leave(listen: str) -> None:
    with pytest.raises(StartupError, match=r"others reach.*--insecure"):
        take_ports(ServerConfig(listen=listen), main=OPEN, admin=OPEN)


@pytest.mark.parametrize("address", ["127.0.0.1:50051", "unix:/run/a.sock"])
def test_address_for_both_ports_is_refused(address: str) -> None:
    with pytest.raises(StartupError, match=r"^server\.admin_listen is .* as server\.listen is"):
        check_addresses(ServerConfig(listen=address, admin_listen=address))


async def test_dual_stack_address_is_reached_over_both(tmp_path: Path) -> None:
    config = ServerConfig(listen="[::]:0", admin_listen=f"unix:{tmp_path}/a", insecure=True)

    ports = take_ports(config, main=OPEN, admin=OPEN)

    assert isinstance(ports.main.address, TcpAddress)
    for host in ("127.0.0.1", "::1"):
        socket.create_connection((host, ports.main.address.port), timeout=5).close()
    await ports.main.server.stop(0)
    await ports.admin.server.stop(0)
