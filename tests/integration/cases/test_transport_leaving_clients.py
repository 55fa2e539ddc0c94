"""Whoever hangs up or dies costs the engine nothing from then on, whatever its call waited for."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio
from antiphon.v1.admin_pb2 import EngineStats, FlushPrefixCacheRequest, GetEngineStatsRequest
from antiphon.v1.inference_pb2 import GenerateRequest
from antiphon.v1.session_pb2 import GetTurnRequest, Turn
from antiphon.v1.types_pb2 import (
    FinishReason,
    GenerationConfig,
    Prompt,
    SamplingParams,
    StopConditions,
    TokenIds,
)

from support.canary import Canary, at_rest
from support.leaving_client import (
    KINDS,
    LONG_PROMPT_TOKENS,
    MAX_OUTPUT_TOKENS,
    STREAMED_KINDS,
    TURN_ID,
    LeavingClient,
    Wish,
)
from support.real_server import scripted_engine, scripted_server
from support.scripted_engine import Script
from support.server import RunningServer
from support.tiny_tokenizers import save_byte_level_tokenizer

pytestmark = pytest.mark.asyncio(loop_scope="module")

LIMIT_S = 60.0
NUM_ROWS = 4
SETTINGS = (
    f"engine.max_rows={NUM_ROWS}",
    "engine.max_step_tokens=48",
    "engine.kv_cache_tokens=131072",
    "sessions.reconnect_grace_s=0.3",
)
MANY_TOKENS = 400
"""Of so many, what is told of them fills every buffer on the way to the reader."""
CALLS = [(phase, kind) for phase in ("queue", "prefill", "decode") for kind in KINDS] + [
    ("blocked write", kind) for kind in STREAMED_KINDS
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def canary(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Canary]:
    directory = tmp_path_factory.mktemp("served")
    script = Script(texts={"*": [300]}, context_tokens=8192, step_delay_s=0.001)
    tokenizer = save_byte_level_tokenizer(directory / "tokenizer")
    async with (
        scripted_engine(directory, script, settings=SETTINGS) as engine,
        scripted_server(directory, tokenizer, engine, settings=SETTINGS) as server,
    ):
        yield await Canary.of(server)


@pytest.fixture
def server(canary: Canary) -> RunningServer:
    return canary.server


async def stats_of(server: RunningServer) -> EngineStats:
    return await server.admin.GetEngineStats(GetEngineStatsRequest(), timeout=LIMIT_S)


async def until(server: RunningServer, condition: Callable[[EngineStats], bool]) -> EngineStats:
    async with asyncio.timeout(LIMIT_S):
        while True:
            stats = await stats_of(server)
            if condition(stats):
                return stats
            await asyncio.sleep(0.02)


async def ended_turn(server: RunningServer, name: str) -> Turn:
    async with asyncio.timeout(LIMIT_S):
        while True:
            turn: Turn = await server.sessions.GetTurn(GetTurnRequest(name=name))
            if turn.state not in (Turn.STATE_QUEUED, Turn.STATE_RUNNING):
                return turn
            await asyncio.sleep(0.02)


class Phase:
    """Brings calls to where they are to be left, and checks what that cost."""

    def __init__(self, name: str, server: RunningServer, num_calls: int) -> None:
        self.name = name
        self.wish = Wish(long_prompt=name == "prefill", much_to_write=name == "blocked write")
        self._server = server
        self._num_calls = num_calls
        self._before = EngineStats()
        self._blockers: list[object] = []

    async def prepare(self) -> None:
        """To be called before the calls are made."""
        if self.name == "queue":
            await self._take_all_rows()
        await self._server.admin.FlushPrefixCache(FlushPrefixCacheRequest())
        self._before = await stats_of(self._server)

    async def reach(self) -> None:
        """Waits until every call is there."""
        if self.name == "queue":
            await until(self._server, lambda now: now.num_waiting == self._num_calls)
            return
        num_tokens = {"prefill": 0, "decode": 1, "blocked write": MANY_TOKENS}[self.name]
        least = self._before.num_generated_tokens_total + self._num_calls * num_tokens
        num_prefilled = self._before.num_prefilled_tokens_total
        num_calls = self._num_calls
        await until(
            self._server,
            lambda now: (
                # Those whose reader is far behind are held, and are neither.
                (self.name == "blocked write" or now.num_running + now.num_waiting == num_calls)
                and now.num_prefilled_tokens_total > num_prefilled
                and now.num_generated_tokens_total >= least
            ),
        )

    async def check_left(self) -> None:
        """Waits until the engine has let go of the calls, and checks what it did for them."""
        if self.name == "queue":
            left = await until(self._server, lambda now: not now.num_waiting)
            assert left.num_running == NUM_ROWS
            assert left.num_prefilled_tokens_total == self._before.num_prefilled_tokens_total
            for blocker in self._blockers:
                blocker.cancel()
        # Turns of sessions rest for a moment, in which their callers may come back.
        expected = self._before.num_finished_total["CANCELLED"]
        expected += self._num_calls + len(self._blockers)
        await until(self._server, lambda now: now.num_finished_total["CANCELLED"] >= expected)
        after = await at_rest(self._server)
        grown = after.num_generated_tokens_total - self._before.num_generated_tokens_total
        if self.name == "prefill":
            prefilled = after.num_prefilled_tokens_total - self._before.num_prefilled_tokens_total
            assert prefilled < self._num_calls * LONG_PROMPT_TOKENS
        if self.name != "queue":
            assert grown < self._num_calls * MAX_OUTPUT_TOKENS
        assert after.num_finished_total["CANCELLED"] == expected

    async def _take_all_rows(self) -> None:
        request = GenerateRequest(
            prompt=Prompt(token_ids=TokenIds(ids=[7])),
            config=GenerationConfig(
                sampling=SamplingParams(temperature=0),
                stop=StopConditions(max_output_tokens=8000, ignore_eos=True),
            ),
        )
        self._blockers = [self._server.inference.StreamGenerate(request) for _ in range(NUM_ROWS)]
        await until(self._server, lambda now: now.num_running == NUM_ROWS)


@pytest.mark.parametrize(("phase_name", "kind"), CALLS)
async def test_cancelled_call_is_dropped_where_it_is(
    canary: Canary, server: RunningServer, phase_name: str, kind: str
) -> None:
    phase = Phase(phase_name, server, num_calls=1)
    client = LeavingClient(server.target, phase.wish)
    await phase.prepare()
    call = await client.open(kind)
    await phase.reach()

    call.cancel()

    await phase.check_left()
    if client.session:
        turn = await ended_turn(server, f"{client.session}/turns/{TURN_ID}")
        # What was stopped before it said anything leaves nothing in the history.
        said = phase_name in ("decode", "blocked write")
        assert turn.state == (Turn.STATE_COMPLETED if said else Turn.STATE_FAILED)
        if said:
            assert turn.output.finish_reason == FinishReason.FINISH_REASON_CANCELLED
    await client.close()
    await canary.check()


@pytest.mark.parametrize("phase_name", ["queue", "prefill", "decode", "blocked write"])
async def test_calls_of_a_killed_client_are_dropped_where_they_are(
    canary: Canary, server: RunningServer, phase_name: str
) -> None:
    kinds = STREAMED_KINDS if phase_name == "blocked write" else KINDS
    phase = Phase(phase_name, server, num_calls=len(kinds))
    await phase.prepare()
    flags = [
        *(["--long-prompt"] if phase.wish.long_prompt else []),
        *(["--much-to-write"] if phase.wish.much_to_write else []),
    ]
    client = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "support.leaving_client", server.target, *kinds, *flags),
        cwd=Path(__file__).parents[2],
    )
    await phase.reach()

    client.kill()
    await client.wait()

    await phase.check_left()
    await canary.check()


async def test_nothing_is_computed_for_calls_that_have_left(
    canary: Canary, server: RunningServer
) -> None:
    client = LeavingClient(server.target, Wish())
    calls = [await client.open(kind) for kind in KINDS]
    await until(server, lambda now: now.num_running == NUM_ROWS)
    await until(server, lambda now: now.num_running + now.num_waiting == len(calls))
    for call in calls:
        call.cancel()
    before = await at_rest(server)

    await canary.check()

    after = await at_rest(server)
    assert after.num_generated_tokens_total - before.num_generated_tokens_total == len(
        canary.token_ids
    )
    await client.close()
