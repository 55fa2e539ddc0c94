"""Light calls answer while everything else waits."""

import asyncio
import subprocess
import sys
from pathlib import Path

import grpc
import pytest
from antiphon.v1 import admin_pb2, inference_pb2, types_pb2
from grpc_health.v1 import health_pb2

from antiphon_engine.api.handle import EngineState
from support.fake_engine import FakeEngine
from support.server import details_of, running_server

NUM_STREAMS = 200
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


def long_request(text: str = "Hi") -> inference_pb2.GenerateRequest:
    return inference_pb2.GenerateRequest(
        prompt=types_pb2.Prompt(text=text),
        config=types_pb2.GenerationConfig(stop=types_pb2.StopConditions(ignore_eos=True)),
    )


async def until(condition: object) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - the fake has no event for it
            await asyncio.sleep(0.005)


async def test_light_calls_answer_while_streams_and_queue_are_full(tmp_path: Path) -> None:
    engine = FakeEngine(max_running=8)
    limit = f"limits.max_queued_requests={NUM_STREAMS}"
    async with running_server(tmp_path, engine=engine, settings=[limit]) as running:
        engine.hold()
        watch = running.health.Watch(health_pb2.HealthCheckRequest())
        told = [(await watch.read()).status]
        streams = [running.inference.StreamGenerate(long_request()) for _ in range(NUM_STREAMS)]
        await until(lambda: len(engine.requests) == NUM_STREAMS)
        encoding = running.inference.Generate(long_request("a word and another " * 20_000))

        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await running.inference.StreamGenerate(long_request()).read()
        checks = await asyncio.gather(
            *(running.health.Check(health_pb2.HealthCheckRequest()) for _ in range(20))
        )
        stats = await running.admin.GetEngineStats(admin_pb2.GetEngineStatsRequest())
        streams[-1].cancel()
        await until(lambda: sum(request.cancel_asked for request in engine.requests) == 1)
        engine.set_state(EngineState.STALLED)
        told.append((await watch.read()).status)

        assert details_of(refused.value)["ErrorInfo"].reason == "OVERLOADED"
        assert {check.status for check in checks} == {SERVING}
        assert stats.num_waiting == NUM_STREAMS
        assert told == [SERVING, NOT_SERVING]
        encoding.cancel()
        for stream in streams:
            stream.cancel()


SERVED_TURN = """
import asyncio, sys, tempfile
from pathlib import Path
from antiphon.v1 import session_pb2, types_pb2
from support.server import running_server

async def main():
    with tempfile.TemporaryDirectory() as directory:
        async with running_server(Path(directory)) as running:
            session = await running.sessions.CreateSession(session_pb2.CreateSessionRequest())
            message = types_pb2.ChatMessage(role=types_pb2.ROLE_USER, text="Hi")
            stop = types_pb2.StopConditions(max_output_tokens=4)
            turn = session_pb2.StartTurn(
                items=[types_pb2.Item(message=message)],
                config=types_pb2.GenerationConfig(stop=stop),
            )
            request = session_pb2.RunTurnRequest(session=session.name, turn=turn)
            kinds = [e.WhichOneof("event") async for e in running.sessions.RunTurn(request)]
            heavy = {"torch", "transformers", "xgrammar"} & set(sys.modules)
            print(kinds[0], kinds[-1], sorted(heavy))

asyncio.run(main())
"""


def test_front_end_has_not_imported_torch_after_a_served_turn() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SERVED_TURN],
        env={"PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert done.stdout.splitlines()[-1:] == ["accepted completed []"], done.stderr
