"""More sessions than the memory holds, all kept open: none of them holds anybody up."""

import asyncio
from collections.abc import AsyncIterator, Sequence

import grpc
import pytest
import pytest_asyncio
from antiphon.v1.admin_pb2 import FlushPrefixCacheRequest
from antiphon.v1.inference_pb2 import GenerateRequest
from antiphon.v1.session_pb2 import (
    CreateSessionRequest,
    DeleteSessionRequest,
    ForkSessionRequest,
    GetSessionRequest,
    HistoryPoint,
    Retention,
    RewindSessionRequest,
    RunTurnRequest,
    Session,
    StartTurn,
    TurnEvent,
    UpdateSessionRequest,
)
from antiphon.v1.types_pb2 import Constraint, FinishReason, GenerationConfig, Prompt, TokenIds
from google.protobuf.duration_pb2 import Duration
from google.protobuf.field_mask_pb2 import FieldMask

from support.answers import LIMIT_S
from support.canary import Canary
from support.real_server import real_server
from support.server import RunningServer, details_of
from support.session_rows import user
from support.tiny_checkpoints import make_checkpoint, prompts
from support.tiny_tokenizers import save_byte_level_tokenizer
from support.turn_runs import TurnRun, events_of_turn, greedy, new_session, run_turn

pytestmark = pytest.mark.asyncio(loop_scope="module")

BLOCK_TOKENS = 16
NUM_BLOCKS = 64
NUM_SESSIONS = 40
SETTINGS = [
    f"engine.block_tokens={BLOCK_TOKENS}",
    f"engine.kv_cache_tokens={NUM_BLOCKS * BLOCK_TOKENS}",
    f"sessions.max_sessions={NUM_SESSIONS}",
]
QUESTIONS = ("Name a river", "Name a lake", "Name a town", "Name a hill")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def canary(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Canary]:
    directory = tmp_path_factory.mktemp("pressed")
    checkpoint = save_byte_level_tokenizer(make_checkpoint(directory / "model"))
    async with real_server(directory, checkpoint, settings=SETTINGS) as server:
        yield await Canary.of(server)


@pytest_asyncio.fixture(loop_scope="module")
async def server(canary: Canary) -> AsyncIterator[RunningServer]:
    """A server of a small pool; each test leaves no session and no used block behind."""
    yield canary.server
    await canary.check()


def three_blocks() -> GenerationConfig:
    """A config whose answer, with a short question, takes three blocks."""
    config = greedy(2 * BLOCK_TOKENS + 4)
    config.stop.ignore_eos = True
    return config


def config_of(number: int) -> GenerationConfig:
    """As `three_blocks`; every other session's answers must look like something."""
    if number % 2 == 0:
        return three_blocks()
    config = greedy(2 * BLOCK_TOKENS + 4)
    config.constraint.CopyFrom(Constraint(regex="([a-f]{2}[0-9]-){80}"))
    return config


def question(number: int) -> str:
    return QUESTIONS[number % len(QUESTIONS)]


async def open_all(server: RunningServer, **values: object) -> list[str]:
    return [await new_session(server, **values) for _ in range(NUM_SESSIONS)]


async def ask_all(server: RunningServer, sessions: Sequence[str], word: str) -> list[TurnRun]:
    turns = [
        run_turn(server, session, [user(f"{question(number)} {word}")], config_of(number))
        for number, session in enumerate(sessions)
    ]
    return await asyncio.gather(*turns)


async def delete_all(server: RunningServer, sessions: Sequence[str]) -> None:
    deletions = [
        server.sessions.DeleteSession(DeleteSessionRequest(name=name), timeout=LIMIT_S)
        for name in sessions
    ]
    await asyncio.gather(*deletions)


async def answer_alone(server: RunningServer, run: TurnRun, number: int) -> list[int]:
    """What a turn of such a session says to its prompt, without a session and without a cache."""
    await server.admin.FlushPrefixCache(FlushPrefixCacheRequest(), timeout=LIMIT_S)
    request = GenerateRequest(
        prompt=Prompt(token_ids=TokenIds(ids=run.prompt_ids)), config=config_of(number)
    )
    answer = await server.inference.Generate(request, timeout=LIMIT_S)
    return list(answer.outputs[0].token_ids)


async def test_all_sessions_get_on_beside_stateless_calls(server: RunningServer) -> None:
    sessions = await open_all(server, retention=Retention(priority=100))
    first = await ask_all(server, sessions, "now")
    calls = [answer_alone(server, first[number], number) for number in range(len(QUESTIONS))]
    second, *alone = await asyncio.gather(ask_all(server, sessions, "again"), *calls)

    for number, run in enumerate(second):
        assert run.prompt_ids[: len(first[number].context)] == first[number].context
        assert run.output_ids == second[number % len(QUESTIONS)].output_ids
    assert alone == [run.output_ids for run in first[: len(QUESTIONS)]]
    for number, run in enumerate(second[: len(QUESTIONS)]):
        assert await answer_alone(server, run, number) == run.output_ids
    await delete_all(server, sessions)


async def test_busy_sessions_are_closed_while_others_go_on(server: RunningServer) -> None:
    sessions = await open_all(server)
    await ask_all(server, sessions, "now")
    busy, idle = sessions[: NUM_SESSIONS // 2], sessions[NUM_SESSIONS // 2 :]
    long = three_blocks()
    long.stop.max_output_tokens = 300
    start = StartTurn(items=[user("Say all you know")], config=long)

    async def run_until_closed(name: str) -> TurnEvent:
        call = server.sessions.RunTurn(RunTurnRequest(session=name, turn=start), timeout=LIMIT_S)
        last = await call.read()
        deletion = asyncio.create_task(delete_all(server, [name]))
        while (event := await call.read()) is not grpc.aio.EOF:
            last = event
        await deletion
        return last

    async def closed(name: str) -> str:
        try:
            last = await run_until_closed(name)
            cut = last.completed.finish_reason == FinishReason.FINISH_REASON_CANCELLED
            return "cut" if cut else str(last.WhichOneof("event"))
        except grpc.aio.AioRpcError as error:
            return error.code().name

    ends, others = await asyncio.gather(
        asyncio.gather(*(closed(name) for name in busy)), ask_all(server, idle, "again")
    )

    # A turn may have come to its end before.
    assert set(ends) <= {"completed", "cut", "CANCELLED"}
    assert len(others) == len(idle)
    await delete_all(server, idle)


async def test_the_limit_on_sessions_holds_for_forks_and_frees_with_expiry(
    server: RunningServer,
) -> None:
    sessions = await open_all(server)
    for call in (
        server.sessions.CreateSession(CreateSessionRequest(), timeout=LIMIT_S),
        server.sessions.ForkSession(ForkSessionRequest(name=sessions[0]), timeout=LIMIT_S),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert details_of(refused.value)["ErrorInfo"].reason == "QUOTA_EXCEEDED"
    await delete_all(server, sessions[:1])
    expiring = await server.sessions.CreateSession(CreateSessionRequest())
    await run_turn(server, expiring.name, [user("Name a river")], three_blocks())
    # Only now, so that the turn has all the time it takes.
    short = Session(name=expiring.name, idle_ttl=Duration(nanos=200_000_000))
    await server.sessions.UpdateSession(
        UpdateSessionRequest(session=short, update_mask=FieldMask(paths=["idle_ttl"]))
    )
    await asyncio.sleep(0.3)

    with pytest.raises(grpc.aio.AioRpcError) as gone:
        await server.sessions.GetSession(GetSessionRequest(name=expiring.name), timeout=LIMIT_S)
    again = await server.sessions.CreateSession(CreateSessionRequest(), timeout=LIMIT_S)

    assert details_of(gone.value)["ErrorInfo"].reason == "SESSION_EXPIRED"
    await delete_all(server, [*sessions[1:], again.name])


async def fill_pool(server: RunningServer, num_blocks: int) -> None:
    """Leaves so many blocks of others' prompts in the cache, used later than all before."""
    per_call = 8
    for number in range(num_blocks // per_call):
        (token_ids,) = prompts(
            1, least=per_call * BLOCK_TOKENS, most=per_call * BLOCK_TOKENS, seed=number
        )
        prompt = Prompt(token_ids=TokenIds(ids=token_ids))
        await server.inference.Generate(
            GenerateRequest(prompt=prompt, config=greedy(1)), timeout=LIMIT_S
        )


@pytest.mark.parametrize("ends", ["stays", "rewound", "answered_anew", "deleted"])
async def test_what_a_session_left_behind_leaves_the_cache_first(
    server: RunningServer, ends: str
) -> None:
    await server.admin.FlushPrefixCache(FlushPrefixCacheRequest(), timeout=LIMIT_S)
    oldest, other = [await new_session(server) for _ in range(2)]
    before = await run_turn(server, oldest, [user("Name a river")], three_blocks())
    long = three_blocks()
    long.stop.max_output_tokens = 20 * BLOCK_TOKENS
    await run_turn(server, other, [user("Say all you know")], long)
    start = HistoryPoint(start={})
    if ends == "rewound":
        request = RewindSessionRequest(name=other, to=start)
        await server.sessions.RewindSession(request, timeout=LIMIT_S)
    elif ends == "answered_anew":
        again = StartTurn(items=[user("No")], config=greedy(1), rewind_to=start)
        await events_of_turn(server, other, again)
    elif ends == "deleted":
        await delete_all(server, [other])

    await fill_pool(server, NUM_BLOCKS - 8)
    after = await run_turn(server, oldest, [user("again")], three_blocks())

    kept = after.usage.cached_prompt_tokens >= len(before.context) - BLOCK_TOKENS
    assert kept == (ends != "stays")
    await delete_all(server, [oldest] if ends == "deleted" else [oldest, other])
