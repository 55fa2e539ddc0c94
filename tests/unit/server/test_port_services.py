"""A server whose model is not there yet: it holds its ports and says so."""

import grpc
import pytest
from antiphon.v1 import (
    admin_pb2,
    admin_pb2_grpc,
    inference_pb2,
    inference_pb2_grpc,
    session_pb2,
    session_pb2_grpc,
)
from grpc_health.v1 import health_pb2, health_pb2_grpc

from antiphon_server.app import Server
from antiphon_server.model_loading import load_text_side, served_model
from support.failing import refused_call
from support.fake_engine import FakeEngine
from support.server import INFO, details_of, loopback_config
from support.tiny_tokenizers import save_byte_level_tokenizer

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.fixture
async def server(tmp_path):
    server = Server(loopback_config(tmp_path))
    await server.answer()
    yield server
    await server.close(0)


@pytest.fixture
async def channel(server):
    async with grpc.aio.insecure_channel(str(server.address)) as channel:
        yield channel


@pytest.fixture
async def admin_channel(server):
    async with grpc.aio.insecure_channel(str(server.admin_address)) as channel:
        yield channel


async def test_health_is_told_while_the_model_loads_and_once_it_is_there(
    server, channel, admin_channel, tmp_path
):
    stubs = [health_pb2_grpc.HealthStub(each) for each in (channel, admin_channel)]
    request = health_pb2.HealthCheckRequest()
    before = [(await stub.Check(request)).status for stub in stubs]

    await open_with_model(server, tmp_path)

    after = [(await stub.Check(request)).status for stub in stubs]
    assert (before, after) == ([NOT_SERVING] * 2, [SERVING] * 2)


async def test_calls_of_every_kind_are_told_to_come_again(channel, admin_channel):
    inference = inference_pb2_grpc.InferenceServiceStub(channel)
    sessions = session_pb2_grpc.SessionServiceStub(channel)
    admin = admin_pb2_grpc.AdminServiceStub(admin_channel)
    request = inference_pb2.GenerateRequest()

    refusals = [
        await refused_call(inference.Generate(request)),
        await refused_call(inference.StreamGenerate(request).read()),
        await refused_call(sessions.Converse(iter([session_pb2.ConverseRequest()])).read()),
        await refused_call(admin.GetServerInfo(admin_pb2.GetServerInfoRequest())),
    ]

    for refusal in refusals:
        assert refusal.code() is grpc.StatusCode.UNAVAILABLE
        details = details_of(refusal)
        assert details["ErrorInfo"].reason == "ENGINE_DOWN"
        assert details["RetryInfo"].retry_delay.seconds == 2


async def test_the_same_connection_is_served_once_the_model_is_there(server, channel, tmp_path):
    sessions = session_pb2_grpc.SessionServiceStub(channel)
    await refused_call(sessions.CreateSession(session_pb2.CreateSessionRequest()))

    await open_with_model(server, tmp_path)

    created = await sessions.CreateSession(session_pb2.CreateSessionRequest(session_id="s"))
    assert created.name == "sessions/s"


async def test_a_method_that_no_service_has_is_unimplemented_as_ever(channel):
    unknown = channel.unary_unary("/antiphon.v2.InferenceService/Generate")

    refusal = await refused_call(unknown(b""))

    assert refusal.code() is grpc.StatusCode.UNIMPLEMENTED


async def open_with_model(server: Server, directory) -> None:
    config = loopback_config(directory)
    text = load_text_side(config, save_byte_level_tokenizer(directory / "tokenizer"), INFO)
    await server.open([served_model(config, text, FakeEngine())])
