import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from antiphon_engine.api.handle import EngineState
from antiphon_server.services.health import HealthService
from antiphon_server.supervision import Supervision
from support.fake_engine import FakeEngine

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
MAX_WATCHERS = 3
NAMES = ["antiphon.v1.InferenceService", "antiphon.v1.SessionService"]


@dataclass
class Served:
    stub: health_pb2_grpc.HealthStub
    engine: FakeEngine
    supervision: Supervision


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    engine, supervision = FakeEngine(), Supervision()
    server = grpc.aio.server()
    health_pb2_grpc.add_HealthServicer_to_server(
        HealthService(supervision, NAMES, max_watchers=MAX_WATCHERS), server
    )
    port = server.add_insecure_port("127.0.0.1:0")
    supervision.follow([engine])
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield Served(health_pb2_grpc.HealthStub(channel), engine, supervision)
    await server.stop(0)


@pytest.mark.parametrize("name", ["", *NAMES])
async def test_every_service_has_the_status_of_the_engine(served: Served, name: str) -> None:
    request = health_pb2.HealthCheckRequest(service=name)

    before = await served.stub.Check(request)
    served.engine.set_state(EngineState.STALLED)
    stalled = await served.stub.Check(request)
    served.engine.set_state(EngineState.READY)
    after = await served.stub.Check(request)

    assert [before.status, stalled.status, after.status] == [SERVING, NOT_SERVING, SERVING]


async def test_draining_server_is_not_serving(served: Served) -> None:
    served.supervision.begin_drain()

    assert (await served.stub.Check(health_pb2.HealthCheckRequest())).status == NOT_SERVING


async def test_unknown_service_is_not_found(served: Served) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await served.stub.Check(health_pb2.HealthCheckRequest(service="nope"))

    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def test_list_names_every_service(served: Served) -> None:
    answer = await served.stub.List(health_pb2.HealthListRequest())

    assert {name: entry.status for name, entry in answer.statuses.items()} == dict.fromkeys(
        ("", *NAMES), SERVING
    )


async def test_watcher_is_told_of_every_change(served: Served) -> None:
    watch = served.stub.Watch(health_pb2.HealthCheckRequest(service=NAMES[0]))
    told = [(await watch.read()).status]

    served.engine.set_state(EngineState.DOWN)
    told.append((await watch.read()).status)
    served.engine.set_state(EngineState.READY)
    told.append((await watch.read()).status)
    served.supervision.begin_drain()
    told.append((await watch.read()).status)

    assert told == [SERVING, NOT_SERVING, SERVING, NOT_SERVING]


async def test_watcher_of_an_unknown_service_is_told_so_and_not_cut_off(served: Served) -> None:
    watch = served.stub.Watch(health_pb2.HealthCheckRequest(service="nope"))

    first = await watch.read()

    assert first.status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
    assert not watch.done()


async def test_watchers_are_bounded_and_leave_their_places(served: Served) -> None:
    request = health_pb2.HealthCheckRequest()
    watches = [served.stub.Watch(request) for _ in range(MAX_WATCHERS)]
    await asyncio.gather(*(watch.read() for watch in watches))

    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await served.stub.Watch(request).read()
    for watch in watches:
        watch.cancel()

    async def watch_once() -> int:
        while True:
            try:
                return (await served.stub.Watch(request).read()).status
            except grpc.aio.AioRpcError:
                await asyncio.sleep(0.01)

    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert await asyncio.wait_for(watch_once(), 60) == SERVING
