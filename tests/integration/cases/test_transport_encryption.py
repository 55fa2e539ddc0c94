"""Encrypted ports of a served model: who comes in, and how mistakes are told."""

import socket
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
from antiphon.v1 import admin_pb2, admin_pb2_grpc, model_pb2, model_pb2_grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from support.certificates import Authority, Pair
from support.serve_command import Command, Runner
from support.tenants import bearer, token_entry, write_tokens
from support.tiny_runner import tiny_runner

LIMIT_S = 60.0
SERVING = health_pb2.HealthCheckResponse.SERVING


@dataclass(frozen=True, slots=True)
class Made:
    """Certificates, and a tokens file."""

    authority: Authority
    server: Pair
    other: Pair
    client: Pair
    expired: Pair
    tokens: Path


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    with tiny_runner(tmp_path_factory.mktemp("served")) as made:
        yield made


@pytest.fixture(scope="module")
def made(runner: Runner) -> Made:
    authority = Authority(runner.directory / "authority")
    return Made(
        authority=authority,
        server=authority.sign("server"),
        other=authority.sign("other"),
        client=authority.sign("client.acme.example"),
        expired=authority.sign("old", start="20200101", end="20210101"),
        tokens=write_tokens(
            runner.directory / "tokens.toml",
            token_entry("tk-ops", "ops", "admin = true"),
            '[[certificates]]\nname = "client.acme.example"\ntenant = "acme"\n',
        ),
    )


def tls(cert: Path, key: Path, **more: Path) -> list[str]:
    settings = {"tls_cert": cert, "tls_key": key, **more}
    return [part for key, path in settings.items() for part in ("--set", f"server.{key}={path}")]


@pytest.fixture(scope="module")
def encrypted(runner: Runner, made: Made) -> Command:
    """Serves all addresses of the machine, without --insecure."""
    flags = tls(
        made.server.cert,
        made.server.key,
        tls_client_ca=made.authority.cert,
        tokens_file=made.tokens,
    )
    return runner.start("--listen", "[::]:0", "--set", "logging.level=debug", *flags)


@pytest.fixture(scope="module")
def port(encrypted: Command) -> int:
    return int(encrypted.read_address().rpartition(":")[2])


def channel_to(port: int, made: Made, *, client: Pair | None) -> grpc.Channel:
    credentials = grpc.ssl_channel_credentials(
        made.authority.cert.read_bytes(),
        client.key.read_bytes() if client else None,
        client.cert.read_bytes() if client else None,
    )
    options = [("grpc.use_local_subchannel_pool", 1)]
    return grpc.secure_channel(f"localhost:{port}", credentials, options)


def list_models(channel: grpc.Channel, token: str = "") -> grpc.StatusCode:
    metadata = bearer(token) if token else None
    try:
        model_pb2_grpc.ModelServiceStub(channel).ListModels(
            model_pb2.ListModelsRequest(), metadata=metadata, timeout=LIMIT_S
        )
    except grpc.RpcError as error:
        return error.code()
    return grpc.StatusCode.OK


def test_certificate_that_the_tokens_file_knows_is_a_credential(port: int, made: Made) -> None:
    with channel_to(port, made, client=made.client) as channel:
        assert list_models(channel) is grpc.StatusCode.OK


def test_certificate_that_it_does_not_know_needs_a_token(port: int, made: Made) -> None:
    with channel_to(port, made, client=made.other) as channel:
        assert list_models(channel) is grpc.StatusCode.UNAUTHENTICATED
        assert list_models(channel, "tk-wrong") is grpc.StatusCode.UNAUTHENTICATED
        assert list_models(channel, "tk-ops") is grpc.StatusCode.OK


def test_client_without_a_certificate_does_not_get_that_far(port: int, made: Made) -> None:
    with channel_to(port, made, client=None) as channel:
        assert list_models(channel, "tk-ops") is grpc.StatusCode.UNAVAILABLE


def test_client_in_the_clear_fails_alone_and_leaves_a_trace_and_no_secret_is_logged(
    runner: Runner, encrypted: Command, port: int, made: Made
) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{port}") as plain:
        assert list_models(plain, "tk-ops") is grpc.StatusCode.UNAVAILABLE
    with socket.create_connection(("127.0.0.1", port), timeout=LIMIT_S) as other:
        other.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        while other.recv(1 << 16):
            pass
    with channel_to(port, made, client=made.client) as channel:
        assert list_models(channel) is grpc.StatusCode.OK

    exit_status, log = encrypted.end()
    assert exit_status == 0
    assert "Handshake failed" in log
    assert "call refused" in log
    drawn = [path.read_text().strip() for path in runner.directory.glob("sessions-*.db.secret")]
    assert drawn
    key = made.server.key.read_text().splitlines()[1]
    for secret in ("tk-ops", "tk-wrong", key, *drawn):
        assert secret not in log


MISTAKES = {
    "key of another": (lambda m: tls(m.server.cert, m.other.key), r"server.tls_key"),
    "missing file": (lambda m: tls(m.server.cert, m.server.key / "none"), "server.tls_key"),
    "expired": (lambda m: tls(m.expired.cert, m.expired.key), "has expired"),
    "no key": (lambda m: ["--set", f"server.tls_cert={m.server.cert}"], "server.tls_key"),
    "no tokens": (lambda m: ["--set", "server.tokens_file=/nonexistent"], "server.tokens_file"),
    "open without credentials": (
        lambda m: ["--listen", "[::]:0", *tls(m.server.cert, m.server.key)],
        "server.tokens_file",
    ),
    "tokens in the clear": (
        lambda m: ["--listen", "[::]:0", "--set", f"server.tokens_file={m.tokens}"],
        "in the clear",
    ),
    "open admin port": (lambda m: ["--admin-listen", "[::]:0"], "server.admin_listen"),
    "mode": (lambda m: ["--set", "server.socket_mode=rw"], "server.socket_mode"),
}


def test_every_mistake_is_told_in_one_line(runner: Runner, made: Made) -> None:
    commands = {what: runner.start(*flags(made)) for what, (flags, _) in MISTAKES.items()}

    for what, command in commands.items():
        out, log = command.process.communicate(timeout=LIMIT_S)
        assert command.process.returncode == 2, what
        assert not out
        assert "Traceback" not in log
        last_line = log.strip().splitlines()[-1]
        assert last_line.startswith("antiphon: server."), what
        assert MISTAKES[what][1] in last_line


def test_socket_is_its_owners_alone_and_its_admin_socket_as_well(runner: Runner) -> None:
    paths = [runner.directory / name for name in ("main.sock", "admin.sock")]
    command = runner.start("--listen", f"unix:{paths[0]}", "--admin-listen", f"unix:{paths[1]}")
    command.read_ready_line()

    assert [stat.S_IMODE(path.stat().st_mode) for path in paths] == [0o600, 0o600]
    with grpc.insecure_channel(f"unix:{paths[0]}") as channel:
        request = health_pb2.HealthCheckRequest()
        status = health_pb2_grpc.HealthStub(channel).Check(request, timeout=LIMIT_S).status
    with grpc.insecure_channel(f"unix:{paths[1]}") as channel:
        info = admin_pb2_grpc.AdminServiceStub(channel).GetServerInfo(
            admin_pb2.GetServerInfoRequest(), timeout=LIMIT_S
        )
    assert status == SERVING
    assert info.settings["server.socket_mode"] == '"0600"'
