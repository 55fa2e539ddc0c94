"""Tenants feel nothing of each other's prompts, whatever they choose themselves."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from antiphon.v1.inference_pb2 import (
    GenerateRequest,
    MultiplexGenerateRequest,
    ValidateConstraintRequest,
)
from antiphon.v1.session_pb2 import (
    CreateSessionRequest,
    GetSessionRequest,
    RunTurnRequest,
    StartTurn,
)
from antiphon.v1.types_pb2 import (
    ChatMessage,
    Constraint,
    GenerationConfig,
    Item,
    Prompt,
    Role,
    StopConditions,
    TokenIds,
)

from support.real_server import real_server
from support.server import RunningServer
from support.tenants import bearer, token_entry, write_tokens

pytestmark = pytest.mark.asyncio(loop_scope="session")

LIMIT_S = 60.0
PROMPT_TOKENS = 400
A, B, TWIN = bearer("tk-a"), bearer("tk-b"), bearer("tk-twin")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def server(
    tmp_path_factory: pytest.TempPathFactory, tiny_checkpoint: Path
) -> AsyncIterator[RunningServer]:
    directory = tmp_path_factory.mktemp("tenants")
    tokens = write_tokens(
        directory / "tokens.toml",
        token_entry("tk-a", "a"),
        token_entry("tk-b", "b"),
        token_entry("tk-twin", "twin"),
        '[tenants.b]\ncache_group = "pair"\n[tenants.twin]\ncache_group = "pair"\n',
    )
    settings = [f"server.tokens_file={tokens}"]
    async with real_server(directory, tiny_checkpoint, settings=settings) as running:
        yield running


def request(first_id: int, constraint: Constraint | None = None) -> GenerateRequest:
    """A long prompt like no other test's."""
    ids = [first_id + position * 7 % 90 for position in range(PROMPT_TOKENS)]
    return GenerateRequest(
        prompt=Prompt(token_ids=TokenIds(ids=ids)),
        config=GenerationConfig(stop=StopConditions(max_output_tokens=1), constraint=constraint),
    )


async def cached(
    server: RunningServer, first_id: int, who: object, constraint: Constraint | None = None
) -> int:
    asked = request(first_id, constraint)
    answer = await server.inference.Generate(asked, metadata=who, timeout=LIMIT_S)
    assert answer.usage.prompt_tokens == PROMPT_TOKENS
    return int(answer.usage.cached_prompt_tokens)


async def cached_in_scope(
    server: RunningServer, first_id: int, who: object, cache_scope: str
) -> int:
    frame = MultiplexGenerateRequest(tag=1, generate=request(first_id), cache_scope=cache_scope)
    call = server.inference.MultiplexGenerate(iter([frame]), metadata=who, timeout=LIMIT_S)
    told = [
        event.generation.completed.usage.cached_prompt_tokens
        async for answer in call
        for event in answer.events
        if event.generation.HasField("completed")
    ]
    (num_cached,) = told
    return int(num_cached)


async def test_prompt_of_another_tenant_is_cold_and_ones_own_is_not(server: RunningServer) -> None:
    assert await cached(server, 100, A) == 0
    assert await cached(server, 100, B) == 0
    # B has sent it once now, in a scope that B names after A's: cold all the same.
    assert await cached_in_scope(server, 100, B, "a") == 0
    assert await cached(server, 100, A) > PROMPT_TOKENS // 2


async def test_a_constraint_that_tenants_share_shares_no_prompt(server: RunningServer) -> None:
    same = Constraint(regex="[a-f]{4}")
    assert await cached(server, 500, A, same) == 0
    assert await cached(server, 500, B, same) == 0
    assert await cached(server, 500, A, same) > PROMPT_TOKENS // 2
    # A prompt's blocks are the same, whatever must hold for what is behind it.
    assert await cached(server, 500, A) > PROMPT_TOKENS // 2


async def test_what_a_caller_chooses_divides_its_own_scope_only(server: RunningServer) -> None:
    assert await cached_in_scope(server, 200, A, "x") == 0
    assert await cached_in_scope(server, 200, A, "y") == 0
    assert await cached_in_scope(server, 200, B, "x") == 0
    assert await cached_in_scope(server, 200, A, "x") > 0


async def test_tenants_that_are_set_to_share_do(server: RunningServer) -> None:
    assert await cached(server, 300, TWIN) == 0
    assert await cached(server, 300, B) > 0
    assert await cached(server, 300, A) == 0


async def test_sessions_are_apart_as_well_and_tell_their_own_residency_only(
    server: RunningServer,
) -> None:
    text = "What do carpenters measure before they raise the frame? " * 8
    item = Item(message=ChatMessage(role=Role.ROLE_USER, text=text))
    num_cached = {}
    for who in (A, B, A):
        number = len(num_cached)
        create = CreateSessionRequest(session_id=f"s{number}")
        session = await server.sessions.CreateSession(create, metadata=who, timeout=LIMIT_S)
        start = StartTurn(
            items=[item], config=GenerationConfig(stop=StopConditions(max_output_tokens=1))
        )
        turn = RunTurnRequest(session=session.name, turn=start)
        async for event in server.sessions.RunTurn(turn, metadata=who, timeout=LIMIT_S):
            if event.HasField("completed"):
                num_cached[number] = event.completed.usage.cached_prompt_tokens
        left = await server.sessions.GetSession(
            GetSessionRequest(name=session.name), metadata=who, timeout=LIMIT_S
        )
        assert left.residency.device_tokens > 0

    assert (num_cached[0], num_cached[1]) == (0, 0)
    assert num_cached[2] > 0


@pytest.mark.parametrize("regex", ["[a-z]{3,17}", "(x|y)[0-9]{2}"])
async def test_what_compiling_took_is_told_to_all_alike(server: RunningServer, regex: str) -> None:
    """So it does not tell who asked for the same before, as a time of zero would."""
    request = ValidateConstraintRequest(constraint=Constraint(regex=regex))

    told = [
        await server.inference.ValidateConstraint(request, timeout=LIMIT_S, metadata=caller)
        for caller in (A, B, A)
    ]

    assert told[0].valid
    assert told[0].compile_time.ToNanoseconds() > 0
    assert told[1:] == [told[0]] * 2
