"""Requests that are given up at any moment leave nothing behind, in neither process."""

import asyncio
import gc
import os
import random
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from antiphon.v1.inference_pb2 import GenerateRequest
from antiphon.v1.types_pb2 import Constraint, GenerationConfig, Prompt, TokenIds
from grpc_health.v1 import health_pb2

from antiphon_engine.api.link import EngineLink
from antiphon_engine.api.streams import NewsStream
from antiphon_server.generation import Generation
from antiphon_server.sessions.turn import LiveTurn
from support.canary import Canary, at_rest
from support.crowds import Crowd
from support.real_server import scripted_engine, scripted_server
from support.scripted_engine import Script
from support.serve_command import fork_of
from support.server import RunningServer
from support.tiny_tokenizers import save_byte_level_tokenizer

pytestmark = pytest.mark.asyncio(loop_scope="module")

NUM_REQUESTS = 50
"""In a round."""
NUM_ROUNDS = 3
LIMIT_S = 60.0
TEXT = list(range(320, 350))
MIB = 1 << 20
ALLOWANCE_BYTES = 8 * MIB
"""What allocators may keep for themselves; a leak shows beyond it in long runs."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def canary(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Canary]:
    directory = tmp_path_factory.mktemp("cancellations")
    # The engine finds its grammars' vocabulary where the front end finds the tokenizer.
    tokenizer = save_byte_level_tokenizer(directory)
    settings = ["engine.max_rows=6", "engine.max_step_tokens=64", "engine.kv_cache_tokens=65536"]
    script = Script(texts={"*": TEXT}, step_delay_s=0.001, context_tokens=8192)
    async with (
        scripted_engine(directory, script, settings=settings) as engine,
        scripted_server(directory, tokenizer, engine) as server,
    ):
        yield await Canary.of(server)


@pytest_asyncio.fixture(loop_scope="module")
async def server(canary: Canary) -> AsyncIterator[RunningServer]:
    """A server with fewer rows than callers; each test leaves it as it was."""
    yield canary.server
    await canary.check()


async def load_grammars(server: RunningServer) -> None:
    """Waits for what is loaded in the background for grammars: it would look like a leak."""
    for constraint in (Constraint(regex="a"), Constraint(ebnf='root ::= "a"')):
        config = GenerationConfig(constraint=constraint)
        request = GenerateRequest(prompt=Prompt(token_ids=TokenIds(ids=[1])), config=config)
        await server.inference.Generate(request, timeout=LIMIT_S)


def count_held() -> Counter[str]:
    """Counts what the front end holds of requests."""
    gc.collect()
    kinds = {Generation, NewsStream, LiveTurn}
    return Counter(type(o).__name__ for o in gc.get_objects() if type(o) in kinds)


async def until_nothing_is_held(server: RunningServer) -> None:
    """Waits until timers for callers that may come again are over, and the transport lets go.

    Of a connection's last call it lets go with the next one.
    """
    async with asyncio.timeout(LIMIT_S):
        while count_held():
            await server.health.Check(health_pb2.HealthCheckRequest())
            await asyncio.sleep(0.05)


def resident_bytes(server: RunningServer) -> dict[str, int]:
    """The memory of both processes."""
    assert isinstance(server.engine, EngineLink)
    launcher_id = server.engine.process_id
    assert launcher_id is not None
    ids = {"front end": os.getpid(), "engine": fork_of(launcher_id)}
    pages = {name: Path(f"/proc/{i}/statm").read_text().split()[1] for name, i in ids.items()}
    return {name: int(num) * os.sysconf("SC_PAGE_SIZE") for name, num in pages.items()}


async def test_requests_given_up_at_any_moment_leave_nothing_behind(
    server: RunningServer, scale: int
) -> None:
    await load_grammars(server)
    crowd = Crowd(server=server, text=TEXT, source=random.Random(11))
    before = (await at_rest(server)).num_finished_total["MAX_OUTPUT_TOKENS"]
    memory = []
    for _ in range(NUM_ROUNDS):
        await crowd.send(NUM_REQUESTS * scale)

        stats = await at_rest(server)
        assert (stats.num_blocks_used, stats.num_sessions) == (0, 0)
        await until_nothing_is_held(server)
        assert stats.num_finished_total["MAX_OUTPUT_TOKENS"] == before  # No end was missed.
        memory.append(resident_bytes(server))
    ways = {end.partition(" ")[0] for end in crowd.ends}
    statuses = {end.partition(" ")[2] for end in crowd.ends}
    assert ways == {"ask", "stream", "share", "run_turn", "talk"}
    assert statuses == {"OK", "CANCELLED"}
    assert crowd.ends.total() == NUM_ROUNDS * NUM_REQUESTS * scale
    grown_by = 2 * NUM_REQUESTS * scale * MIB / 1000 + ALLOWANCE_BYTES
    for process in memory[0]:
        assert memory[-1][process] - memory[0][process] < grown_by, process
