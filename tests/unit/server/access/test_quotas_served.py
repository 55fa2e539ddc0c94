"""Quotas as callers meet them, on every way to generate."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest
from antiphon.v1 import inference_pb2, session_pb2
from antiphon.v1.types_pb2 import (
    ChatMessage,
    GenerationConfig,
    Item,
    Prompt,
    Role,
    StopConditions,
    TokenIds,
)

from antiphon_server.access.quota_limits import QUOTAS
from support.fake_engine import FakeEngine
from support.scrapes import scrape
from support.server import RunningServer, details_of, running_server
from support.tenants import bearer, token_entry, write_tokens

A, B = bearer("tk-a"), bearer("tk-b")
LIMIT_S = 60.0


@asynccontextmanager
async def served(
    tmp_path: Path, quotas: str, *, engine: FakeEngine | None = None
) -> AsyncIterator[RunningServer]:
    """Serves tenants a and b, of whom a has these quotas."""
    tokens = write_tokens(
        tmp_path / "tokens.toml",
        token_entry("tk-a", "a"),
        token_entry("tk-b", "b"),
        f"[tenants.a]\n{quotas}\n",
    )
    settings = [f"server.tokens_file={tokens}"]
    async with running_server(tmp_path, settings=settings, engine=engine) as server:
        yield server


def generate(num_output_tokens: int = 1) -> inference_pb2.GenerateRequest:
    return inference_pb2.GenerateRequest(
        prompt=Prompt(token_ids=TokenIds(ids=range(5, 15))), config=config(num_output_tokens)
    )


def config(num_output_tokens: int) -> GenerationConfig:
    return GenerationConfig(stop=StopConditions(max_output_tokens=num_output_tokens))


def start_turn(turn_id: str, num_output_tokens: int = 1) -> session_pb2.StartTurn:
    item = Item(message=ChatMessage(role=Role.ROLE_USER, text="hi"))
    return session_pb2.StartTurn(turn_id=turn_id, items=[item], config=config(num_output_tokens))


async def run_turn(server: RunningServer, turn_id: str, num_output_tokens: int = 1) -> str:
    """Runs a turn of A's session; returns how it ended."""
    turn = session_pb2.RunTurnRequest(
        session="sessions/mine", turn=start_turn(turn_id, num_output_tokens)
    )
    last = ""
    async for event in server.sessions.RunTurn(turn, metadata=A, timeout=LIMIT_S):
        last = event.WhichOneof("event")
    return last


async def make_session(server: RunningServer) -> None:
    create = session_pb2.CreateSessionRequest(session_id="mine")
    await server.sessions.CreateSession(create, metadata=A, timeout=LIMIT_S)


def quota_in(error: grpc.aio.AioRpcError) -> str:
    """The quota that a failure names, with a time to come back."""
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    details = details_of(error)
    assert details["ErrorInfo"].reason == "QUOTA_EXCEEDED"
    assert details["RetryInfo"].retry_delay.ToNanoseconds() > 0
    (violation,) = details["QuotaFailure"].violations
    assert dict(details["ErrorInfo"].metadata)["quota"] == violation.subject
    return str(violation.subject)


async def test_requests_over_the_rate_are_refused_and_others_go_on(tmp_path: Path) -> None:
    engine = FakeEngine()
    async with served(tmp_path, "requests_per_minute = 1", engine=engine) as server:
        await server.inference.Generate(generate(), metadata=A, timeout=LIMIT_S)
        for call in (server.inference.Generate, read_stream(server), read_multiplexed(server)):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call(generate(), metadata=A, timeout=LIMIT_S)
            assert quota_in(caught.value) == "requests_per_minute"
        await server.inference.Generate(generate(), metadata=B, timeout=LIMIT_S)

    assert len(engine.requests) == 2


async def test_running_requests_are_counted_until_their_call_ends(tmp_path: Path) -> None:
    slow = FakeEngine(step_interval_s=0.05)
    async with served(tmp_path, "max_concurrent_requests = 1", engine=slow) as server:
        endless = server.inference.StreamGenerate(generate(200), metadata=A, timeout=LIMIT_S)
        await endless.read()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await server.inference.Generate(generate(), metadata=A, timeout=LIMIT_S)
        assert quota_in(caught.value) == "max_concurrent_requests"

        endless.cancel()
        await until_let_in(server)


async def test_turn_over_the_rate_is_refused_and_leaves_no_trace(tmp_path: Path) -> None:
    async with served(tmp_path, "requests_per_minute = 1") as server:
        await make_session(server)
        assert await run_turn(server, "first") == "completed"

        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await run_turn(server, "second")
        listed = await server.sessions.ListTurns(
            session_pb2.ListTurnsRequest(session="sessions/mine", show_all=True),
            metadata=A,
            timeout=LIMIT_S,
        )

    assert quota_in(caught.value) == "requests_per_minute"
    assert [turn.name for turn in listed.turns] == ["sessions/mine/turns/first"]


async def test_known_turn_is_answered_again_whatever_the_quota(tmp_path: Path) -> None:
    async with served(tmp_path, "requests_per_minute = 1") as server:
        await make_session(server)

        assert await run_turn(server, "same") == "completed"
        assert await run_turn(server, "same") == "completed"


async def test_turn_of_more_tokens_than_are_left_fails_and_the_session_goes_on(
    tmp_path: Path,
) -> None:
    slow = FakeEngine(step_interval_s=0.05)
    async with served(tmp_path, "tokens_per_minute = 250", engine=slow) as server:
        await make_session(server)
        endless = server.inference.StreamGenerate(generate(200), metadata=A, timeout=LIMIT_S)
        await endless.read()

        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await run_turn(server, "too-long", 100)
        assert quota_in(caught.value) == "tokens_per_minute"
        endless.cancel()
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.CancelledError):
            while await endless.read():
                pass
        await until_let_in(server)
        assert await run_turn(server, "short") == "completed"


async def test_waiting_turns_are_counted_over_all_sessions(tmp_path: Path) -> None:
    slow = FakeEngine(step_interval_s=0.05)
    async with served(tmp_path, "max_queued_turns = 1", engine=slow) as server:
        await make_session(server)
        opening = session_pb2.OpenSession(name="sessions/mine")
        frames = [session_pb2.ConverseRequest(open=opening)] + [
            session_pb2.ConverseRequest(generate=start_turn(f"t{number}", 100))
            for number in range(3)
        ]
        frames[-1].frame_id = "last"
        stream = server.sessions.Converse(metadata=A, timeout=LIMIT_S)
        for frame in frames:
            await stream.write(frame)
        async for answer in stream:
            if answer.HasField("rejected"):
                break
        stream.cancel()

    assert answer.rejected.failure.metadata["quota"] == "max_queued_turns"
    assert answer.rejected.frame_id == "last"


async def test_quotas_of_the_settings_hold_where_the_file_says_nothing(tmp_path: Path) -> None:
    async with running_server(tmp_path, settings=["quotas.requests_per_minute=1"]) as server:
        await server.inference.Generate(generate(), timeout=LIMIT_S)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await server.inference.Generate(generate(), timeout=LIMIT_S)

    assert quota_in(caught.value) == "requests_per_minute"


async def test_what_quotas_refuse_is_in_the_metrics_also_where_the_store_refuses(
    tmp_path: Path,
) -> None:
    settings = [
        "telemetry.prometheus_listen=127.0.0.1:0",
        "sessions.max_sessions=1",
        "quotas.max_stored_bytes=1",
    ]
    async with running_server(tmp_path, settings=settings) as server:
        await server.sessions.CreateSession(session_pb2.CreateSessionRequest(session_id="mine"))
        for num in range(2):
            turn = session_pb2.RunTurnRequest(session="sessions/mine", turn=start_turn(f"t{num}"))
            with pytest.raises(grpc.aio.AioRpcError, match="max_stored_bytes"):
                await server.sessions.RunTurn(turn).read()
        create = session_pb2.CreateSessionRequest(session_id="more")
        with pytest.raises(grpc.aio.AioRpcError, match="max_sessions"):
            await server.sessions.CreateSession(create)
        seen = await scrape(server.server.metering.address)

    name = "antiphon_quota_refusals_total"
    told = {labels["quota"]: seen.sum(name, **labels) for labels in seen.labels(name)}
    assert told == {**dict.fromkeys(QUOTAS, 0), "max_stored_bytes": 2, "max_sessions": 1}


def read_stream(server: RunningServer):
    async def read(request, **how: object) -> None:
        async for _ in server.inference.StreamGenerate(request, **how):
            pass

    return read


def read_multiplexed(server: RunningServer):
    """Reads one tagged request; what fails in its stream is raised as a call of its own would."""

    async def read(request, **how: object) -> None:
        frame = inference_pb2.MultiplexGenerateRequest(tag=1, generate=request)
        async for answer in server.inference.MultiplexGenerate(iter([frame]), **how):
            for event in answer.events:
                assert event.failed.metadata["quota"] == "requests_per_minute"
                assert event.failed.retry_delay.ToNanoseconds() > 0
        await server.inference.Generate(request, **how)

    return read


async def until_let_in(server: RunningServer) -> None:
    """At most until the test's time is over."""
    while True:
        try:
            await server.inference.Generate(generate(), metadata=A, timeout=LIMIT_S)
        except grpc.aio.AioRpcError as error:
            quota_in(error)
        else:
            return
