"""Flags that say which server to ask and how, shared by the commands that ask one."""

import argparse
import shlex
from pathlib import Path
from typing import Final

from antiphon_client import ClientOptions, SyncClient, TlsOptions

DEFAULT_TARGET: Final = "127.0.0.1:50051"


def add_connection(parser: argparse.ArgumentParser, *, target: str = DEFAULT_TARGET) -> None:
    """Declares where the server is, by default at `target`, and how the connection is guarded."""
    group = parser.add_argument_group("connection")
    group.add_argument(
        "--target",
        metavar="ADDRESS",
        default=target,
        help="the server, HOST:PORT or unix:PATH (default %(default)s)",
    )
    group.add_argument(
        "--token-file", type=Path, metavar="FILE", help="the token that says who asks"
    )
    group.add_argument(
        "--tls",
        action="store_true",
        help="encrypt, and trust servers that the system's authorities vouch for",
    )
    group.add_argument(
        "--ca",
        type=Path,
        metavar="FILE",
        help="encrypt, and trust servers that these authorities vouch for, in PEM",
    )
    group.add_argument(
        "--cert", type=Path, metavar="FILE", help="this client's certificate, in PEM"
    )
    group.add_argument("--key", type=Path, metavar="FILE", help="the key of --cert, in PEM")
    group.add_argument(
        "--insecure",
        action="store_true",
        help="send the token beyond this machine although the connection is not encrypted",
    )


def connect(arguments: argparse.Namespace, *, reconnect_timeout_s: float = 60.0) -> SyncClient:
    """Returns a client as the flags say, to connect with its first call; raises as `options_of`."""
    options = options_of(arguments, reconnect_timeout_s=reconnect_timeout_s)
    try:
        return SyncClient(arguments.target, options)
    except ValueError as error:
        raise ValueError(f"{error} (--tls, --ca or --insecure)") from None


def flags_again(arguments: argparse.Namespace) -> str:
    """Returns the flags, each behind a blank, that take a later command to the same server."""
    valued = {
        "--target": arguments.target if arguments.target != DEFAULT_TARGET else None,
        "--token-file": arguments.token_file,
        "--ca": arguments.ca,
        "--cert": arguments.cert,
        "--key": arguments.key,
    }
    words = [word for flag, value in valued.items() if value for word in (flag, str(value))]
    words += ["--tls"] * arguments.tls + ["--insecure"] * arguments.insecure
    return f" {shlex.join(words)}" if words else ""


def options_of(
    arguments: argparse.Namespace, *, reconnect_timeout_s: float = 60.0
) -> ClientOptions:
    """Returns how a client behaves, as the flags say.

    Raises:
        ValueError: the flags don't go together, or a file is not as it must be.
        OSError: a file can't be read.
    """
    if (arguments.cert is None) != (arguments.key is None):
        raise ValueError("--cert and --key go together; give both or none")
    is_encrypted = arguments.tls or arguments.ca is not None or arguments.cert is not None
    tls = TlsOptions(
        ca=None if arguments.ca is None else arguments.ca.read_bytes(),
        certificate=None if arguments.cert is None else arguments.cert.read_bytes(),
        key=None if arguments.key is None else arguments.key.read_bytes(),
    )
    return ClientOptions(
        tls=tls if is_encrypted else None,
        token="" if arguments.token_file is None else _token(arguments.token_file),
        sends_token_unencrypted=arguments.insecure,
        reconnect_timeout_s=reconnect_timeout_s,
        close_timeout_s=2.0,
    )


def _token(path: Path) -> str:
    """Returns a file's token. Raises ValueError: there is not one line of it."""
    lines = path.read_bytes().split()
    if len(lines) != 1 or not lines[0].isascii():
        raise ValueError(f"--token-file: {path} must hold one token and nothing else")
    return lines[0].decode("ascii")
