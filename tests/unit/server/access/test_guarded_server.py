"""A whole server whose callers need credentials."""

from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from antiphon.v1 import admin_pb2, inference_pb2, model_pb2, session_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from structlog.testing import capture_logs

from support.server import RunningServer, details_of, running_server
from support.tenants import bearer, token_entry, write_tokens

A, B, OPS = bearer("tk-acme"), bearer("tk-bolt"), bearer("tk-ops")
LIMIT_S = 60.0


@pytest.fixture
async def tokens_file(tmp_path: Path) -> Path:
    return write_tokens(
        tmp_path / "tokens.toml",
        token_entry("tk-acme", "acme"),
        token_entry("tk-bolt", "bolt"),
        token_entry("tk-ops", "ops", "admin = true"),
    )


@pytest.fixture
async def server(tmp_path: Path, tokens_file: Path) -> AsyncIterator[RunningServer]:
    settings = [f"server.tokens_file={tokens_file}"]
    async with running_server(tmp_path, settings=settings) as running:
        yield running


async def refused(call: object) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await ended(call)
    return caught.value


async def ended(call: object) -> None:
    if isinstance(call, grpc.aio.UnaryUnaryCall):
        await call
        return
    async for _ in call:
        pass


async def test_every_method_refuses_who_brings_no_credential(server: RunningServer) -> None:
    calls = [
        server.inference.Generate(inference_pb2.GenerateRequest(), timeout=LIMIT_S),
        server.inference.StreamGenerate(inference_pb2.GenerateRequest(), timeout=LIMIT_S),
        server.inference.MultiplexGenerate(iter(()), timeout=LIMIT_S),
        server.models.ListModels(model_pb2.ListModelsRequest(), timeout=LIMIT_S),
        server.tokenizer.Tokenize(model_pb2.TokenizeRequest(), timeout=LIMIT_S),
        server.sessions.GetSession(session_pb2.GetSessionRequest(), timeout=LIMIT_S),
        server.sessions.Converse(iter(()), timeout=LIMIT_S),
        server.admin.GetServerInfo(admin_pb2.GetServerInfoRequest(), timeout=LIMIT_S),
        server.admin.GetServerInfo(admin_pb2.GetServerInfoRequest(), timeout=LIMIT_S, metadata=A),
    ]
    for call in calls:
        error = await refused(call)

        assert error.code() is grpc.StatusCode.UNAUTHENTICATED
        assert details_of(error)["ErrorInfo"].reason == "BAD_CREDENTIAL"


async def test_log_tells_from_where_a_stranger_called(server: RunningServer) -> None:
    with capture_logs() as log:
        await refused(server.models.ListModels(model_pb2.ListModelsRequest(), timeout=LIMIT_S))
        await refused(
            server.sessions.GetSession(
                session_pb2.GetSessionRequest(name="sessions/none"), timeout=LIMIT_S, metadata=A
            )
        )

    stranger, known = (line for line in log if line["event"] == "call refused")
    assert stranger["reason"] == "BAD_CREDENTIAL"
    assert stranger["peer"].startswith("ipv4:127.0.0.1:")
    assert "peer" not in known


async def test_credentials_are_asked_for_before_anything_else_is_told(
    server: RunningServer,
) -> None:
    """Neither a field's mistake nor a drain is told to strangers."""
    unknown = session_pb2.GetSessionRequest.FromString(b"\xf8\x07\x01")
    server.server.supervision.begin_drain()

    error = await refused(server.sessions.GetSession(unknown, timeout=LIMIT_S))

    assert error.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_health_is_told_to_anyone_on_both_ports(server: RunningServer) -> None:
    for channel in (server.channel, server.admin_channel):
        answer = await health_pb2_grpc.HealthStub(channel).Check(
            health_pb2.HealthCheckRequest(), timeout=LIMIT_S
        )
        assert answer.status == health_pb2.HealthCheckResponse.SERVING


async def test_reflection_needs_a_credential(server: RunningServer) -> None:
    stub = reflection_pb2_grpc.ServerReflectionStub(server.channel)
    question = reflection_pb2.ServerReflectionRequest(list_services="")

    error = await refused(stub.ServerReflectionInfo(iter([question]), timeout=LIMIT_S))
    answers = stub.ServerReflectionInfo(iter([question]), timeout=LIMIT_S, metadata=A)

    assert error.code() is grpc.StatusCode.UNAUTHENTICATED
    assert [len(answer.list_services_response.service) > 3 async for answer in answers] == [True]


async def test_sessions_of_another_tenant_are_not_there(server: RunningServer) -> None:
    make = session_pb2.CreateSessionRequest(session_id="mine")
    ask = session_pb2.GetSessionRequest(name="sessions/mine")
    everything = session_pb2.ListSessionsRequest()
    await server.sessions.CreateSession(make, metadata=A, timeout=LIMIT_S)

    error = await refused(server.sessions.GetSession(ask, metadata=B, timeout=LIMIT_S))
    unknown = session_pb2.GetSessionRequest(name="sessions/none")
    never = await refused(server.sessions.GetSession(unknown, metadata=B, timeout=LIMIT_S))
    listed = await server.sessions.ListSessions(everything, metadata=B, timeout=LIMIT_S)

    assert error.code() is grpc.StatusCode.NOT_FOUND
    assert error.details() == (never.details() or "").replace("none", "mine")
    assert not listed.sessions
    # Their names are free for others.
    await server.sessions.CreateSession(make, metadata=B, timeout=LIMIT_S)
    assert (await server.sessions.GetSession(ask, metadata=A, timeout=LIMIT_S)).name


async def test_stream_speaks_for_its_caller(server: RunningServer) -> None:
    make = session_pb2.CreateSessionRequest(session_id="mine")
    await server.sessions.CreateSession(make, metadata=A, timeout=LIMIT_S)
    opening = [session_pb2.ConverseRequest(open=session_pb2.OpenSession(name="sessions/mine"))]

    error = await refused(server.sessions.Converse(iter(opening), metadata=B, timeout=LIMIT_S))
    opened = server.sessions.Converse(iter(opening), metadata=A, timeout=LIMIT_S)

    assert error.code() is grpc.StatusCode.NOT_FOUND
    assert [answer.opened.session.name async for answer in opened] == ["sessions/mine"]


async def test_open_stream_ends_at_its_first_frame_behind_the_end_of_its_token(
    server: RunningServer, tokens_file: Path
) -> None:
    make = session_pb2.CreateSessionRequest(session_id="mine")
    await server.sessions.CreateSession(make, metadata=A, timeout=LIMIT_S)
    frame = session_pb2.ConverseRequest(open=session_pb2.OpenSession(name="sessions/mine"))
    stream = server.sessions.Converse(metadata=A, timeout=LIMIT_S)
    await stream.write(frame)
    await stream.read()

    write_tokens(tokens_file, token_entry("tk-new", "acme"))
    models = model_pb2.ListModelsRequest()
    while await outcome(server.models.ListModels(models, metadata=A, timeout=LIMIT_S)) is None:
        pass
    await stream.write(session_pb2.ConverseRequest(cancel=session_pb2.CancelRequest(turn_id="t")))

    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stream.read()
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


async def outcome(call: object) -> grpc.StatusCode | None:
    try:
        await ended(call)
    except grpc.aio.AioRpcError as error:
        return error.code()
    return None


async def test_admin_port_takes_an_admin(server: RunningServer) -> None:
    request = admin_pb2.GetServerInfoRequest()

    info = await server.admin.GetServerInfo(request, metadata=OPS, timeout=LIMIT_S)

    assert "tokens.toml" in info.settings["server.tokens_file"]


async def test_changed_tokens_hold_without_a_restart(
    server: RunningServer, tokens_file: Path
) -> None:
    request = model_pb2.ListModelsRequest()
    await server.models.ListModels(request, metadata=A, timeout=LIMIT_S)
    write_tokens(tokens_file, token_entry("tk-new", "acme"))

    refusals = set()
    while len(refusals) < 2:  # At most until the test's time is over.
        for metadata in (A, bearer("tk-new")):
            try:
                await server.models.ListModels(request, metadata=metadata, timeout=LIMIT_S)
            except grpc.aio.AioRpcError as error:
                refusals.add((metadata, error.code()))
    assert refusals == {
        (bearer("tk-new"), grpc.StatusCode.UNAUTHENTICATED),
        (A, grpc.StatusCode.UNAUTHENTICATED),
    }
    await server.models.ListModels(request, metadata=bearer("tk-new"), timeout=LIMIT_S)
