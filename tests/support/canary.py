"""Whether a server is as well as it was: its answers, its health, its engine and its memory."""

import asyncio
from dataclasses import dataclass

from antiphon.v1.admin_pb2 import EngineStats, GetEngineStatsRequest
from antiphon.v1.inference_pb2 import GenerateRequest
from antiphon.v1.types_pb2 import (
    GenerationConfig,
    OutputOptions,
    Prompt,
    SamplingParams,
    StopConditions,
    TokenIds,
)
from grpc_health.v1 import health_pb2

from antiphon_engine.api.link import EngineLink
from support.server import RunningServer

_LIMIT_S = 60.0
_REQUEST = GenerateRequest(
    prompt=Prompt(token_ids=TokenIds(ids=range(5, 45))),
    config=GenerationConfig(
        sampling=SamplingParams(temperature=0),
        stop=StopConditions(max_output_tokens=12, ignore_eos=True),
        output=OutputOptions(token_ids=True, special_tokens=True),
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Canary:
    """How a server did while it was well: `check` fails unless it does so again."""

    server: RunningServer
    text: str
    token_ids: tuple[int, ...]
    engine_process_id: int | None

    @classmethod
    async def of(cls, server: RunningServer) -> "Canary":
        """Takes the baseline of a server that is at rest."""
        text, token_ids = await _ask(server)
        canary = cls(
            server=server,
            text=text,
            token_ids=token_ids,
            engine_process_id=_engine_process_id(server),
        )
        await canary.check()
        return canary

    async def check(self) -> None:
        """Waits until the server is at rest; fails where anything differs from the baseline."""
        assert await _ask(self.server) == (self.text, self.token_ids)
        status = await self.server.health.Check(health_pb2.HealthCheckRequest(), timeout=_LIMIT_S)
        assert status.status == health_pb2.HealthCheckResponse.SERVING
        await self.check_rest()

    async def check_rest(self) -> None:
        """Does as `check`, but asks for no answer: one call, for between tests."""
        assert _engine_process_id(self.server) == self.engine_process_id
        stats = await at_rest(self.server)
        assert stats.num_blocks_used == 0
        assert stats.num_blocks_free + stats.num_blocks_cached == stats.num_blocks
        assert stats.num_paused == 0


async def at_rest(server: RunningServer) -> EngineStats:
    """Returns the counters once nothing runs, waits, rests, is guided or holds memory."""
    async with asyncio.timeout(_LIMIT_S):
        while True:
            stats: EngineStats = await server.admin.GetEngineStats(GetEngineStatsRequest())
            busy = stats.num_running + stats.num_waiting + stats.num_paused + stats.num_held
            if not busy + stats.num_blocks_used + stats.num_guides:
                return stats
            await asyncio.sleep(0.01)


async def _ask(server: RunningServer) -> tuple[str, tuple[int, ...]]:
    answer = await server.inference.Generate(_REQUEST, timeout=_LIMIT_S)
    (output,) = answer.outputs
    return output.text, tuple(output.token_ids)


def _engine_process_id(server: RunningServer) -> int | None:
    return server.engine.process_id if isinstance(server.engine, EngineLink) else None
