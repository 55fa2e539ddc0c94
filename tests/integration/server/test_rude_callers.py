"""Callers who send anything to any method: nothing falls over, hangs, or is left behind."""

import asyncio
import gc
import os
import random
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
import structlog
from antiphon.v1.admin_pb2 import DESCRIPTOR as ADMIN
from antiphon.v1.admin_pb2 import DrainRequest
from antiphon.v1.inference_pb2 import GenerateRequest
from antiphon.v1.model_pb2 import ListModelsRequest
from antiphon.v1.session_pb2 import CreateSessionRequest, RunTurnRequest, StartTurn
from antiphon.v1.types_pb2 import GenerationConfig, Prompt, SamplingParams, StopConditions
from grpc_health.v1 import health_pb2

from antiphon_server.generation import Generation
from antiphon_server.listen import TcpAddress
from antiphon_server.services.converse_stream import ConverseStream
from antiphon_server.services.multiplex import MultiplexedStream
from antiphon_server.services.turn_events import TurnEvents
from support.fake_engine import FakeEngine
from support.random_messages import garble
from support.rude_caller import METHODS, RudeCaller
from support.server import RunningServer, running_server
from support.session_rows import user

NUM_CALLS = 500
"""At the scale of one; more with --scale."""
NUM_ROUNDS = 3
HELD_KINDS = (Generation, MultiplexedStream, ConverseStream, TurnEvents)


@dataclass
class Watched:
    """A server, and what went wrong inside of it that no caller would see."""

    running: RunningServer
    answer: str
    """To one request, before."""
    lost_errors: list[object]
    log: list[structlog.typing.EventDict]


@pytest.fixture
async def watched(tmp_path: Path) -> AsyncIterator[Watched]:
    lost_errors: list[object] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: lost_errors.append(context))
    settings = ["sessions.max_queued_turns=4", "limits.max_multiplexed_requests=8"]
    engine = FakeEngine(max_running=16)
    with structlog.testing.capture_logs() as log:
        async with running_server(tmp_path, engine=engine, settings=settings) as running:
            await prepare(running)
            yield Watched(running, await ask(running), lost_errors, log)
    loop.set_exception_handler(None)


async def prepare(running: RunningServer) -> None:
    """Makes the session and the turn that callers know of."""
    await running.sessions.CreateSession(CreateSessionRequest(session_id="fuzz"))
    config = GenerationConfig(stop=StopConditions(max_output_tokens=3))
    turn = StartTurn(turn_id="t1", items=[user("hi")], config=config)
    async for _ in running.sessions.RunTurn(RunTurnRequest(session="sessions/fuzz", turn=turn)):
        pass


async def is_healthy(running: RunningServer) -> bool:
    answer = await running.health.Check(health_pb2.HealthCheckRequest(), timeout=60)
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


async def ask(running: RunningServer) -> str:
    """Asks what has one answer, and whether the server is well."""
    assert await is_healthy(running)
    config = GenerationConfig(
        sampling=SamplingParams(seed=5), stop=StopConditions(max_output_tokens=20)
    )
    request = GenerateRequest(prompt=Prompt(text="how are you"), config=config)
    answer = await running.inference.Generate(request, timeout=60)
    return str(answer.outputs[0].text)


def caller_of(running: RunningServer, seed: int) -> RudeCaller:
    addresses = (running.server.address, running.server.admin_address)
    return RudeCaller(
        channel=running.channel,
        admin_channel=running.admin_channel,
        ports=[(a.host, a.port) for a in addresses if isinstance(a, TcpAddress)],
        source=random.Random(seed),
    )


def held() -> Counter[str]:
    gc.collect()
    return Counter(type(o).__name__ for o in gc.get_objects() if type(o) in HELD_KINDS)


async def until_at_rest(running: RunningServer) -> None:
    """Waits until no call, request or turn is left."""
    engine = running.engine
    assert isinstance(engine, FakeEngine)
    async with asyncio.timeout(60):
        while (  # noqa: ASYNC110 - these are no events
            running.server.supervision.num_calls
            or engine.num_running + engine.num_waiting
            or running.server.draining.num_turns
        ):
            await asyncio.sleep(0.01)


def is_of_a_client(task: "asyncio.Task[object]") -> bool:
    """Whether a task belongs to the callers' library, which forgets some that were cancelled."""
    return task.get_coro().__qualname__.startswith("_AioCall.")


async def until_nothing_is_held(running: RunningServer) -> None:
    """Waits until the transport has let go of its calls as well: of the last, with the next."""
    async with asyncio.timeout(60):
        while held():
            await running.health.Check(health_pb2.HealthCheckRequest())
            await running.models.ListModels(ListModelsRequest())


async def test_no_caller_can_break_the_server_or_leave_anything_in_it(
    watched: Watched, scale: int
) -> None:
    running = watched.running
    caller = caller_of(running, seed=7)
    num_tasks, num_files, num_healthy = [], [], 0
    for _ in range(NUM_ROUNDS):
        calls = asyncio.create_task(caller.call_some(NUM_CALLS * scale // NUM_ROUNDS))
        while not calls.done():
            num_healthy += await is_healthy(running)
        await calls
        await until_at_rest(running)
        assert await ask(running) == watched.answer
        await until_nothing_is_held(running)
        num_tasks.append(sum(not is_of_a_client(task) for task in asyncio.all_tasks()))
        num_files.append(len(os.listdir("/proc/self/fd")))

    statuses = {end.partition(" ")[2] for end in caller.ends}
    assert caller.faults == []
    assert {"OK", "CANCELLED", "INVALID_ARGUMENT", "NOT_FOUND"} <= statuses
    if caller.ends.total() > 400:
        assert {end.partition(" ")[0] for end in caller.ends} == {m.name for m in METHODS}
    # One would do if they were answered in turn with everything else.
    assert num_healthy > NUM_ROUNDS * 10
    assert num_tasks[-1] <= num_tasks[0] + 5  # Of the transport, some come and go.
    assert num_files[-1] <= num_files[0] + 2
    assert watched.lost_errors == []
    assert [entry for entry in watched.log if entry["log_level"] == "error"] == []


async def test_no_bytes_sent_to_drain_break_the_server(watched: Watched, scale: int) -> None:
    source = random.Random(3)
    drain = ADMIN.services_by_name["AdminService"].methods_by_name["Drain"]
    path = f"/{drain.containing_service.full_name}/{drain.name}"
    call = watched.running.admin_channel.unary_unary(path)
    data = DrainRequest(limit={"seconds": 1}).SerializeToString()
    statuses = Counter()
    for _ in range(50 * scale):
        try:
            await call(garble(data, source), timeout=30)
            statuses["OK"] += 1
        except grpc.aio.AioRpcError as error:
            statuses[error.code().name] += 1

    assert set(statuses) <= {"OK", "INVALID_ARGUMENT"}
    assert [entry for entry in watched.log if entry["log_level"] == "error"] == []
    assert watched.lost_errors == []
