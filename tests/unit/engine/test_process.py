"""How an engine process is started."""

import uvloop

from antiphon_engine.api.config import EngineConfig
from antiphon_engine.api.process import EngineStart, spawn_engine


def test_a_process_that_dies_before_it_is_told_anything_is_started_all_the_same():
    start = EngineStart(config=EngineConfig(), checkpoint="")

    async def spawn_many() -> list[int | None]:
        ended = []
        for _ in range(100):
            engine = await spawn_engine(["true"], start)
            await engine.end(5)
            engine.link.close()
            ended.append(engine.process.returncode)
        return ended

    # Whether a process dies before or behind the writing is up to the system: many are tried.
    assert uvloop.run(spawn_many()) == [0] * 100
