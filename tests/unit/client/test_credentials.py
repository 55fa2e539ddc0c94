"""How a client says who it is, and whom it trusts."""

import asyncio
from contextlib import asynccontextmanager

import grpc
import pytest
from antiphon.v1 import model_pb2, model_pb2_grpc, session_pb2_grpc
from grpc import aio

from antiphon_cli.main import main
from antiphon_client import Client, ClientOptions, NotReachable, RetryPolicy, TlsOptions
from support.certificates import Authority
from support.scripted_services import serving
from support.scripted_sessions import Conversing, echo

ONCE = RetryPolicy(max_attempts=1)


class Asking(model_pb2_grpc.ModelServiceServicer):
    """Notes with which credential it is asked."""

    def __init__(self):
        self.seen = []

    async def ListModels(self, request, context):
        self.seen.append(dict(context.invocation_metadata()).get("authorization"))
        return model_pb2.ListModelsResponse(models=[model_pb2.Model(name="models/tiny")])


class AskingConversing(Conversing):
    def __init__(self):
        super().__init__(echo)
        self.seen = []

    async def Converse(self, request_iterator, context):
        self.seen.append(dict(context.invocation_metadata()).get("authorization"))
        async for response in super().Converse(request_iterator, context):
            yield response


async def test_every_call_carries_the_token_as_it_is_then():
    tokens = iter(["first", "second"])
    options = ClientOptions(token=lambda: next(tokens))
    models, sessions = Asking(), AskingConversing()
    serves = serving(models=models, sessions=sessions)
    async with serves as target, Client(target, options) as client:
        await anext(client.list_models())
        async with client.new_session() as session:
            await (await session.send("x")).answer()

    assert models.seen == ["Bearer first"]
    assert sessions.seen == ["Bearer second"]


@pytest.mark.parametrize("target", ["10.0.0.5:50051", "example.org:50051", "dns:///ulm:1"])
async def test_a_token_does_not_leave_this_machine_unencrypted_unless_that_is_allowed(target):
    with pytest.raises(ValueError, match="unencrypted"):
        Client(target, ClientOptions(token="secret"))

    await Client(target, ClientOptions(token="secret", sends_token_unencrypted=True)).close()


@pytest.mark.parametrize("target", ["127.0.0.1:1", "localhost:1", "[::1]:1", "unix:/run/a.sock"])
async def test_a_token_may_go_to_this_machine(target):
    await Client(target, ClientOptions(token="secret")).close()


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("certificates") / "trusted")


@asynccontextmanager
async def encrypted(pair, authority):
    """Serves to those only whom the authority has vouched for."""
    credentials = grpc.ssl_server_credentials(
        [(pair.key.read_bytes(), pair.cert.read_bytes())],
        authority.cert.read_bytes(),
        require_client_auth=True,
    )
    server = aio.server()
    model_pb2_grpc.add_ModelServiceServicer_to_server(Asking(), server)
    session_pb2_grpc.add_SessionServiceServicer_to_server(Conversing(echo), server)
    port = server.add_secure_port("127.0.0.1:0", credentials)
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


async def test_client_and_server_know_each_other_by_their_certificates(authority):
    ours = authority.sign("client")
    tls = TlsOptions(
        ca=authority.cert.read_bytes(),
        certificate=ours.cert.read_bytes(),
        key=ours.key.read_bytes(),
    )
    async with encrypted(authority.sign("server"), authority) as target:
        async with Client(target, ClientOptions(tls=tls)) as client:
            model = await anext(client.list_models())
        stranger = TlsOptions(ca=authority.cert.read_bytes())
        async with Client(target, ClientOptions(tls=stranger, retry=ONCE)) as client:
            with pytest.raises(NotReachable):
                await anext(client.list_models())

    assert model.name == "models/tiny"


async def test_a_certificate_without_its_key_is_refused(authority):
    tls = TlsOptions(certificate=authority.cert.read_bytes())
    with pytest.raises(ValueError, match="go together"):
        Client("127.0.0.1:1", ClientOptions(tls=tls))


async def test_the_command_takes_certificates_and_tokens_from_files(authority, tmp_path, capsys):
    ours = authority.sign("command")
    (tmp_path / "token").write_text("secret\n")
    async with encrypted(authority.sign("server"), authority) as target:
        words = ["session", "delete", "nobody", "--target", target]
        flags = ["--ca", authority.cert, "--cert", ours.cert, "--key", ours.key]
        flags += ["--token-file", tmp_path / "token"]
        known = await asyncio.to_thread(main, [*words, *map(str, flags)])
        told = capsys.readouterr().err
        trusting = ["--ca", str(authority.cert)]
        unknown = await asyncio.to_thread(main, [*words, *trusting])

        told_stranger = capsys.readouterr().err
        plain = await asyncio.to_thread(main, words)
        mistrusting = await asyncio.to_thread(main, [*words, "--tls"])

    assert (known, unknown, plain, mistrusting) == (1, 3, 3, 3)
    assert "doesn't know this call" in told, "it came as far as the service"
    assert "see --tls, --ca and --cert" in told_stranger
    hung_up, untrusted = capsys.readouterr().err.splitlines()
    assert "closed the connection; where it is encrypted" in hung_up
    assert "can't be trusted, or is not encrypted" in untrusted


def test_a_token_file_that_holds_anything_else_is_refused(tmp_path, capsys):
    (tmp_path / "token").write_text("two tokens")
    words = ["session", "list", "--token-file", str(tmp_path / "token")]

    assert main(words) == 2
    assert "must hold one token and nothing else" in capsys.readouterr().err
