"""Listen addresses: how they are written, and why one can't be had, in one clear line.

The transport's own message for a failed bind doesn't say why, so an address is tried with a plain
socket first. The ports are never shared with another process.
"""

import contextlib
import errno
import ipaddress
import os
import re
import socket
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import grpc

from antiphon_engine.api.errors import StartupError

_MAX_SOCKET_PATH_BYTES: Final = 107
"""What the system takes as the path of a socket."""
_PROBE_LIMIT_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class TcpAddress:
    """A host, by name or number, and a port; port 0 takes a free one."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class SocketAddress:
    """A socket in the file system."""

    path: str

    def __str__(self) -> str:
        return f"unix:{self.path}"


Address = TcpAddress | SocketAddress


def parse_address(text: str, *, key: str) -> Address:
    """Returns the address that a setting names.

    Args:
        text: HOST:PORT, [IPV6]:PORT or unix:PATH.
        key: The setting, for messages.

    Raises:
        StartupError: it is none of these.
    """
    if text.startswith("unix:"):
        return SocketAddress(_checked_path(text.removeprefix("unix:"), key=key))
    host, colon, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if bracketed:
        host = host[1:-1]
    if not colon or not host or (":" in host) != bracketed or set(host) & set("[]/"):
        raise StartupError(
            f"{key} is {text!r}; write HOST:PORT, [IPV6]:PORT or unix:PATH, such as 127.0.0.1:50051"
        )
    if not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise StartupError(f"{key} is {text!r}; the port must be from 0 to 65535")
    return TcpAddress(host, int(port))


def is_local(address: Address) -> bool:
    """Says whether only this machine reaches the address."""
    if isinstance(address, SocketAddress) or address.host == "localhost":
        return True
    try:
        return ipaddress.ip_address(address.host).is_loopback
    except ValueError:
        return False


def parse_mode(text: str, *, key: str) -> int:
    """Returns the file mode that a setting names in octal. Raises StartupError."""
    if not re.fullmatch(r"(0o?)?[0-7]{3}", text):
        raise StartupError(f"{key} is {text!r}; write an octal mode such as 0600 or 0660")
    return int(text[-3:], 8)


@dataclass(frozen=True, slots=True)
class Binding:
    """How an address is taken."""

    credentials: grpc.ServerCredentials | None = None
    """What encrypts it; None: nothing does."""
    socket_mode: int = 0o600
    """The mode of a socket's file."""


def bind(
    server: grpc.aio.Server, address: Address, *, key: str, how: Binding = Binding()
) -> Address:
    """Takes the address for a server that has not started, and returns it with its real port.

    From then on nobody else can have it. A socket file at which nobody listens is replaced.

    Raises:
        StartupError: it can't be had; names the setting, the address and why.
    """
    try:
        _probe(address)
    except OSError as error:
        reason = _explain(address, error)
        raise StartupError(f"{key}: can't listen on {address}: {reason}") from error
    try:
        with _files_of_mode(how.socket_mode):
            if how.credentials is None:
                port = server.add_insecure_port(str(address))
            else:
                port = server.add_secure_port(str(address), how.credentials)
    except RuntimeError as error:
        raise StartupError(f"{key}: can't listen on {address}: it was taken just now") from error
    return TcpAddress(address.host, port) if isinstance(address, TcpAddress) else address


def listening_socket(
    address: Address, *, key: str, socket_mode: int = 0o600
) -> tuple[socket.socket, Address]:
    """Takes the address for a server that is not gRPC's; returns it with its real port.

    The same holds as for `bind`.

    Raises:
        StartupError: it can't be had; names the setting, the address and why.
    """
    try:
        _probe(address)
        if isinstance(address, SocketAddress):
            with _files_of_mode(socket_mode):
                taken = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                taken.bind(address.path)
            return taken, address
        # One family is enough: [::] takes the other one in.
        family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        taken = socket.create_server(
            (address.host, address.port),
            family=family,
            dualstack_ipv6=address.host == "::",
        )
    except OSError as error:
        reason = _explain(address, error)
        raise StartupError(f"{key}: can't listen on {address}: {reason}") from error
    return taken, TcpAddress(address.host, taken.getsockname()[1])


@contextlib.contextmanager
def _files_of_mode(mode: int) -> Iterator[None]:
    """Makes files that are made meanwhile have the mode from their first moment."""
    earlier = os.umask(0o777 & ~mode)
    try:
        yield
    finally:
        os.umask(earlier)


def _checked_path(path: str, *, key: str) -> str:
    if not path:
        raise StartupError(f"{key} is 'unix:'; write the socket's path after it")
    size = len(os.fsencode(path))
    if size > _MAX_SOCKET_PATH_BYTES:
        raise StartupError(
            f"{key}: the socket's path has {size} bytes; the system takes {_MAX_SOCKET_PATH_BYTES}:"
            f" {path}"
        )
    return path


def _probe(address: Address) -> None:
    """Raises the OSError that stands in the way of listening on the address, if one does."""
    if isinstance(address, SocketAddress):
        _probe_socket_file(address.path)
        return
    infos = socket.getaddrinfo(
        address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    for family, kind, protocol, _, target in infos:
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            probe.bind(target)
            probe.listen(1)


def _probe_socket_file(path: str) -> None:
    folder = Path(path).absolute().parent
    if not folder.is_dir():
        raise FileNotFoundError(errno.ENOENT, "no such folder")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, "no right")
    if os.path.lexists(path):
        _remove_stale(path)
    # Some folders take no sockets, whatever their rights say.
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.bind(path)
        os.unlink(path)


def _remove_stale(path: str) -> None:
    """Removes a socket file at which nobody listens; raises OSError for any other file."""
    if not stat.S_ISSOCK(os.lstat(path).st_mode):
        raise FileExistsError(errno.EEXIST, "not a socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_PROBE_LIMIT_S)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
    raise OSError(errno.EADDRINUSE, "in use")


def _explain(address: Address, error: OSError) -> str:
    """Returns in a few words what is wrong and what to do."""
    if isinstance(error, socket.gaierror):
        return "there is no such host"
    named = f"port {address.port}" if isinstance(address, TcpAddress) else "the socket"
    reasons = {
        errno.EADDRINUSE: f"{named} is in use by another process; stop that or choose another",
        errno.EACCES: "this user has no right to it",
        errno.EPERM: "this user has no right to it",
        errno.EADDRNOTAVAIL: "this machine has no such address",
        errno.EEXIST: "there is a file of that name that is not a socket",
        errno.ENOENT: "the folder does not exist, or takes no sockets",
    }
    return reasons.get(error.errno or 0) or error.strerror or str(error)
