"""Deadlines that pass in the queue end their requests there, and nothing is computed for them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import pytest
import pytest_asyncio
from antiphon.v1.admin_pb2 import EngineStats, GetEngineStatsRequest
from antiphon.v1.inference_pb2 import GenerateRequest
from antiphon.v1.session_pb2 import RunTurnRequest, StartTurn
from antiphon.v1.types_pb2 import (
    FinishReason,
    GenerationConfig,
    OutputOptions,
    Prompt,
    SamplingParams,
    StopConditions,
    TokenIds,
)
from google.protobuf.duration_pb2 import Duration

from support.answers import LIMIT_S
from support.canary import Canary, at_rest
from support.real_server import scripted_engine, scripted_server
from support.refusals import refusal_of
from support.scripted_engine import Script
from support.server import RunningServer
from support.session_rows import user
from support.tiny_tokenizers import save_byte_level_tokenizer
from support.turn_runs import events_of_turn, new_session

pytestmark = pytest.mark.asyncio(loop_scope="module")

NUM_ROWS = 2
NUM_OF_EACH = 50
DEADLINE_S = 0.5
PROMPT_TOKENS = 24
LONG = 20_000
"""More output tokens than any test waits for."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def canary(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Canary]:
    directory = tmp_path_factory.mktemp("deadlines")
    tokenizer = save_byte_level_tokenizer(directory / "tokenizer")
    script = Script(texts={"*": [20, 21, 22]}, context_tokens=1 << 15, step_delay_s=0.002)
    settings = [f"engine.max_rows={NUM_ROWS}", "engine.kv_cache_tokens=65536"]
    async with (
        scripted_engine(directory, script, settings=settings) as engine,
        scripted_server(directory, tokenizer, engine) as server,
    ):
        yield await Canary.of(server)


@pytest_asyncio.fixture(loop_scope="module")
async def server(canary: Canary) -> AsyncIterator[RunningServer]:
    """A server with few rows; each test leaves it as it was."""
    yield canary.server
    await canary.check()


def make_request(seed: int, max_output_tokens: int) -> GenerateRequest:
    """Returns a request whose prompt begins like no other's."""
    return GenerateRequest(
        prompt=Prompt(token_ids=TokenIds(ids=[30 + seed] * PROMPT_TOKENS)),
        config=make_config(max_output_tokens),
    )


def make_config(max_output_tokens: int) -> GenerationConfig:
    return GenerationConfig(
        sampling=SamplingParams(temperature=0),
        stop=StopConditions(max_output_tokens=max_output_tokens, ignore_eos=True),
        output=OutputOptions(token_ids=True),
    )


async def stats_of(server: RunningServer) -> EngineStats:
    return await server.admin.GetEngineStats(GetEngineStatsRequest(), timeout=LIMIT_S)


async def wait_for_waiting(server: RunningServer, num_waiting: int) -> EngineStats:
    """Waits until just so many requests wait, and returns the counters."""
    async with asyncio.timeout(LIMIT_S):
        while (stats := await stats_of(server)).num_waiting != num_waiting:  # noqa: ASYNC110 - polled
            await asyncio.sleep(0.01)
        return stats


@asynccontextmanager
async def all_rows_taken(server: RunningServer) -> AsyncIterator[list[grpc.aio.UnaryStreamCall]]:
    """Fills every row with a stream that goes on until the block ends."""
    streams = [
        server.inference.StreamGenerate(make_request(900 + i, LONG), timeout=2 * LIMIT_S)
        for i in range(NUM_ROWS)
    ]
    try:
        for stream in streams:
            assert (await stream.read()).HasField("started")
        yield streams
        assert not any(stream.done() for stream in streams)
    finally:
        for stream in streams:
            stream.cancel()


async def test_requests_that_expire_in_the_queue_leave_it_and_cost_nothing(
    server: RunningServer,
) -> None:
    async with all_rows_taken(server):
        before = await stats_of(server)
        patient = [
            server.inference.Generate(make_request(i, 2), timeout=LIMIT_S)
            for i in range(NUM_OF_EACH)
        ]
        hasty = [
            (server.inference.Generate if i % 2 else server.inference.StreamGenerate)(
                make_request(NUM_OF_EACH + i, 2), timeout=DEADLINE_S
            )
            for i in range(NUM_OF_EACH)
        ]
        codes = [await call.code() for call in hasty]
        between = await wait_for_waiting(server, NUM_OF_EACH)

        assert codes == [grpc.StatusCode.DEADLINE_EXCEEDED] * NUM_OF_EACH
        assert not any(call.done() for call in patient)
        assert between.num_prefilled_tokens_total == before.num_prefilled_tokens_total

    answers = await asyncio.gather(*patient)
    after = await at_rest(server)
    assert [list(a.outputs[0].token_ids) for a in answers] == [[20, 21]] * NUM_OF_EACH
    num_prefilled = after.num_prefilled_tokens_total - between.num_prefilled_tokens_total
    assert num_prefilled == NUM_OF_EACH * PROMPT_TOKENS


async def test_turns_that_expire_in_the_queue_are_told_so_and_leave_their_sessions_usable(
    server: RunningServer,
) -> None:
    """Here the server itself tells of the end: the call has no deadline so short."""
    names = [await new_session(server) for _ in range(10)]
    start = StartTurn(
        items=[user("hello")],
        config=make_config(2),
        timeout=Duration(nanos=round(DEADLINE_S * 1e9)),
    )
    async with all_rows_taken(server):
        before = await stats_of(server)
        refusals = await asyncio.gather(
            *(refusal_of(lambda name=name: events_of_turn(server, name, start)) for name in names)
        )
        between = await wait_for_waiting(server, 0)

        assert between.num_prefilled_tokens_total == before.num_prefilled_tokens_total
    assert {refusal.code for refusal in refusals} == {grpc.StatusCode.DEADLINE_EXCEEDED}
    assert {refusal.reason for refusal in refusals} == {"TIMEOUT"}
    for name in names:
        again = StartTurn(items=[user("hello")], config=make_config(2))
        events = await events_of_turn(server, name, again)
        assert events[-1].HasField("completed")


async def test_time_limit_that_passes_in_the_queue_ends_with_what_there_is(
    server: RunningServer,
) -> None:
    request = make_request(1, 5)
    request.config.stop.time_limit.FromMilliseconds(round(DEADLINE_S * 1000))
    async with all_rows_taken(server):
        before = await stats_of(server)

        answer = await server.inference.Generate(request, timeout=LIMIT_S)

        after = await wait_for_waiting(server, 0)
        assert after.num_prefilled_tokens_total == before.num_prefilled_tokens_total
    assert answer.outputs[0].finish_reason == FinishReason.FINISH_REASON_TIME_LIMIT
    assert not answer.outputs[0].token_ids


async def test_deadline_that_passes_while_tokens_come_frees_the_row(server: RunningServer) -> None:
    session = await new_session(server)
    start = StartTurn(items=[user("hello")], config=make_config(LONG), timeout=Duration(seconds=2))
    request = RunTurnRequest(session=session, turn=start)
    turn = server.sessions.RunTurn(request, timeout=LIMIT_S)
    stream = server.inference.StreamGenerate(make_request(2, LONG), timeout=2)
    kinds: list[str] = []

    async def read_turn() -> None:
        async for event in turn:
            kinds.append(event.WhichOneof("event"))

    refusal = await refusal_of(read_turn)

    assert (refusal.code, refusal.reason) == (grpc.StatusCode.DEADLINE_EXCEEDED, "TIMEOUT")
    assert kinds[:2] == ["accepted", "started"]
    assert set(kinds[2:-1]) == {"delta"}
    assert kinds[-1] == "failed"
    assert await stream.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert (await at_rest(server)).num_blocks_used == 0
