import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from antiphon_engine.api.errors import StartupError
from antiphon_server.access.reloading import ReloadedFiles
from antiphon_server.access.tls import Certificates, TlsFiles, load_certificates, port_credentials
from support.certificates import Authority, Pair

LIMIT_S = 60.0


@dataclass(frozen=True, slots=True)
class Made:
    """Certificates of two authorities."""

    authority: Authority
    other: Authority
    server: Pair
    other_server: Pair
    client: Pair
    other_client: Pair


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    directory = tmp_path_factory.mktemp("certificates")
    authority, other = Authority(directory / "one"), Authority(directory / "two")
    return Made(
        authority=authority,
        other=other,
        server=authority.sign("server"),
        other_server=other.sign("server"),
        client=authority.sign("acme-client"),
        other_client=other.sign("acme-client"),
    )


def files(pair: Pair, client_ca: Path | None = None) -> TlsFiles:
    return TlsFiles(cert=pair.cert, key=pair.key, client_ca=client_ca)


@asynccontextmanager
async def served(credentials: grpc.ServerCredentials) -> AsyncIterator[int]:
    server = grpc.aio.server()
    health_pb2_grpc.add_HealthServicer_to_server(health.aio.HealthServicer(), server)
    port = server.add_secure_port("127.0.0.1:0", credentials)
    await server.start()
    try:
        yield port
    finally:
        await server.stop(0)


def channel_credentials(trusts: Path, client: Pair | None) -> grpc.ChannelCredentials:
    return grpc.ssl_channel_credentials(
        trusts.read_bytes(),
        client.key.read_bytes() if client else None,
        client.cert.read_bytes() if client else None,
    )


async def ask(port: int, *, trusts: Path, client: Pair | None = None) -> grpc.StatusCode:
    credentials = channel_credentials(trusts, client)
    options = [("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.secure_channel(f"localhost:{port}", credentials, options) as channel:
        try:
            stub = health_pb2_grpc.HealthStub(channel)
            await stub.Check(health_pb2.HealthCheckRequest(), timeout=LIMIT_S)
        except grpc.aio.AioRpcError as error:
            return error.code()
    return grpc.StatusCode.OK


def test_right_files_are_taken(made: Made) -> None:
    assert not load_certificates(files(made.server)).asks_clients
    assert load_certificates(files(made.server, made.authority.cert)).asks_clients


def test_key_of_another_certificate_is_named(made: Made) -> None:
    mixed = TlsFiles(cert=made.server.cert, key=made.other_server.key, client_ca=None)

    with pytest.raises(StartupError, match=r"server\.tls_key: .*server\.key is not the key"):
        load_certificates(mixed)


@pytest.mark.parametrize(
    ("start", "end", "why"),
    [("20200101", "20210101", "has expired"), ("20980101", "20990101", "not yet valid")],
)
def test_certificate_out_of_its_time_is_named(made: Made, start: str, end: str, why: str) -> None:
    pair = made.authority.sign(f"from-{start}", start=start, end=end)

    with pytest.raises(StartupError, match=rf"server\.tls_cert: .*from-{start}\.pem .*{why}"):
        load_certificates(files(pair))


@pytest.mark.parametrize("part", ["cert", "key", "client_ca"])
@pytest.mark.parametrize("content", [None, b"", b"no certificate"])
def test_file_that_is_missing_or_no_pem_is_named(
    made: Made, tmp_path: Path, part: str, content: bytes | None
) -> None:
    bad = tmp_path / "bad.pem"
    if content is not None:
        bad.write_bytes(content)
    given = {"cert": made.server.cert, "key": made.server.key, "client_ca": made.authority.cert}

    with pytest.raises(StartupError, match=rf"server\.tls_{part}.*bad\.pem"):
        load_certificates(TlsFiles(**{**given, part: bad}))


def test_key_with_a_password_is_refused(made: Made, tmp_path: Path) -> None:

    locked = tmp_path / "locked.key"
    subprocess.run(
        ["openssl", "ec", "-in", made.server.key, "-aes128", "-passout", "pass:x", "-out", locked],
        check=True,
        capture_output=True,
    )

    with pytest.raises(StartupError, match=r"locked\.key has a password"):
        load_certificates(TlsFiles(cert=made.server.cert, key=locked, client_ca=None))


async def test_client_with_a_certificate_of_the_authority_comes_in_and_no_other(
    made: Made,
) -> None:
    certificates = load_certificates(files(made.server, made.authority.cert))
    async with served(port_credentials(lambda: certificates)) as port:
        trusts = made.authority.cert

        assert await ask(port, trusts=trusts, client=made.client) is grpc.StatusCode.OK
        assert await ask(port, trusts=trusts) is grpc.StatusCode.UNAVAILABLE
        refused = await ask(port, trusts=trusts, client=made.other_client)
        assert refused is grpc.StatusCode.UNAVAILABLE


def replace_with(pair: Pair, at: Pair) -> None:
    shutil.copy(pair.key, at.key)
    shutil.copy(pair.cert, at.cert)


async def test_changed_certificate_is_taken_by_new_connections(made: Made, tmp_path: Path) -> None:
    at = Pair(tmp_path / "cert.pem", tmp_path / "key.pem")
    replace_with(made.server, at)
    certificates: ReloadedFiles[Certificates] = ReloadedFiles(
        files(at).paths, lambda: load_certificates(files(at)), what="certificates"
    )
    async with served(port_credentials(lambda: certificates.value)) as port:
        assert await ask(port, trusts=made.authority.cert) is grpc.StatusCode.OK

        replace_with(made.other_server, at)

        assert certificates.reload_if_changed()
        assert await ask(port, trusts=made.other.cert) is grpc.StatusCode.OK
        assert await ask(port, trusts=made.authority.cert) is grpc.StatusCode.UNAVAILABLE


async def test_bad_new_certificate_leaves_the_earlier_in_force(made: Made, tmp_path: Path) -> None:
    at = Pair(tmp_path / "cert.pem", tmp_path / "key.pem")
    replace_with(made.server, at)
    certificates: ReloadedFiles[Certificates] = ReloadedFiles(
        files(at).paths, lambda: load_certificates(files(at)), what="certificates"
    )
    async with served(port_credentials(lambda: certificates.value)) as port:
        at.cert.write_bytes(b"half of")

        assert not certificates.reload_if_changed()
        assert await ask(port, trusts=made.authority.cert) is grpc.StatusCode.OK
