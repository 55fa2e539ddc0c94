"""The client and the command at a real server's doors: encrypted, and with tokens."""

import asyncio
import json

import pytest

from antiphon_cli.main import main
from antiphon_client import BadCredential, Client, ClientOptions, SessionNotFound, TlsOptions
from support.certificates import Authority
from support.server import running_server
from support.tenants import token_entry, write_tokens


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("certificates") / "own")


@pytest.fixture
async def server(tmp_path, authority):
    pair = authority.sign("server")
    tokens = write_tokens(
        tmp_path / "tokens.toml", token_entry("tk-acme", "acme"), token_entry("tk-bolt", "bolt")
    )
    settings = [
        f"server.tls_cert={pair.cert}",
        f"server.tls_key={pair.key}",
        f"server.tls_client_ca={authority.cert}",
        f"server.tokens_file={tokens}",
    ]
    async with running_server(tmp_path, settings=settings) as running:
        yield running


@pytest.fixture
def ours(authority):
    return authority.sign("client")


def options(authority, ours, token):
    tls = TlsOptions(
        ca=authority.cert.read_bytes(),
        certificate=ours.cert.read_bytes(),
        key=ours.key.read_bytes(),
    )
    return ClientOptions(tls=tls, token=token)


async def test_each_tenant_sees_its_own_sessions(server, authority, ours):
    async with (
        Client(server.target, options(authority, ours, "tk-acme")) as acme,
        Client(server.target, options(authority, ours, "tk-bolt")) as bolt,
        acme.new_session(session_id="s") as session,
    ):
        assert session.name == "sessions/s"
        with pytest.raises(SessionNotFound):
            await bolt.sessions.get("sessions/s")
        with pytest.raises(SessionNotFound):
            await bolt.resume_session("sessions/s").open()


async def test_a_wrong_token_is_told_by_calls_and_streams(server, authority, ours):
    async with Client(server.target, options(authority, ours, "tk-none")) as client:
        with pytest.raises(BadCredential):
            await client.sessions.get("sessions/s")
        with pytest.raises(BadCredential):
            await client.new_session().open()


async def test_the_command_comes_in_with_its_flags(server, authority, ours, tmp_path, capsys):
    (tmp_path / "token").write_text("tk-acme\n")
    async with Client(server.target, options(authority, ours, "tk-acme")) as client:
        await client.sessions.create(session_id="s")
    words = ["session", "list", "--json", "--target", server.target]
    words += ["--ca", str(authority.cert), "--cert", str(ours.cert), "--key", str(ours.key)]

    let_in = await asyncio.to_thread(main, [*words, "--token-file", str(tmp_path / "token")])
    (listed,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
    kept_out = await asyncio.to_thread(main, words)

    assert (let_in, kept_out) == (0, 1)
    assert json.loads(listed)["name"] == "sessions/s"
    assert "name a token with --token-file" in capsys.readouterr().err
