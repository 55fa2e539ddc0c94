"""The engine's counters as the contract tells them."""

from pathlib import Path

import msgspec
from antiphon.v1 import admin_pb2

from antiphon_engine.api.messages import CoreStats
from support.fake_engine import FakeEngine
from support.server import running_server

COUNTERS = [field.name for field in msgspec.structs.fields(CoreStats) if field.type is int]


class CountingEngine(FakeEngine):
    """Every counter has a value of its own."""

    async def stats(self) -> CoreStats:
        return CoreStats(**{name: 100 + i for i, name in enumerate(COUNTERS)})


async def test_every_counter_that_the_contract_has_is_told(tmp_path: Path) -> None:
    engine = CountingEngine()
    async with running_server(tmp_path, engine=engine) as running:
        told = await running.admin.GetEngineStats(admin_pb2.GetEngineStatsRequest())

    expected = await engine.stats()
    shared = [name for name in COUNTERS if name in told.DESCRIPTOR.fields_by_name]
    # Of those that the engine alone has, the contract knows nothing.
    assert len(shared) > 15
    for name in set(shared) - {"num_sessions"}:
        assert getattr(told, name) == getattr(expected, name), name
