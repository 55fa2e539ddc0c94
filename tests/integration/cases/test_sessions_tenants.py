"""Tenants feel nothing of each other's prompts, whatever they choose themselves."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
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
    Timings,
    TokenIds,
    Usage,
)

from support.real_server import real_server
from support.server import RunningServer
from support.tenants import bearer, token_entry, write_tokens

pytestmark = pytest.mark.asyncio(loop_scope="session")

LIMIT_S = 60.0
PROMPT_TOKENS = 400
STEP_TOKENS = 64
"""A prompt that is not in the cache takes several steps."""
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
    settings = [f"server.tokens_file={tokens}", f"engine.max_step_tokens={STEP_TOKENS}"]
    async with real_server(directory, tiny_checkpoint, settings=settings) as running:
        yield running


def request(first_id: int, constraint: Constraint | None = None) -> GenerateRequest:
    """A long prompt like no other test's."""
    ids = [first_id + position * 7 % 90 for position in range(PROMPT_TOKENS)]
    return GenerateRequest(
        prompt=Prompt(token_ids=TokenIds(ids=ids)),
        config=GenerationConfig(stop=StopConditions(max_output_tokens=1), constraint=constraint),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What a prompt took, in figures that no clock is in."""

    num_cached: int
    num_computed: int
    num_steps: int

    @classmethod
    def of(cls, usage: Usage, timings: Timings) -> "Work":
        """Reads what was told; fails where that doesn't add up."""
        work = cls(
            num_cached=usage.cached_prompt_tokens,
            num_computed=sum(chunk.num_tokens for chunk in timings.prefill_chunks),
            num_steps=sum(chunk.num_steps for chunk in timings.prefill_chunks),
        )
        assert work.num_cached + work.num_computed == usage.prompt_tokens
        assert -(-work.num_computed // STEP_TOKENS) <= work.num_steps <= timings.num_steps
        return work


async def work_of(
    server: RunningServer, first_id: int, who: object, constraint: Constraint | None = None
) -> Work:
    asked = request(first_id, constraint)
    answer = await server.inference.Generate(asked, metadata=who, timeout=LIMIT_S)
    assert answer.usage.prompt_tokens == PROMPT_TOKENS
    return Work.of(answer.usage, answer.timings)


async def cached(
    server: RunningServer, first_id: int, who: object, constraint: Constraint | None = None
) -> int:
    return (await work_of(server, first_id, who, constraint)).num_cached


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


@pytest.mark.parametrize("regex", ["", "[a-f]{4}"], ids=["free", "guided"])
async def test_anothers_prompt_takes_as_many_steps_as_one_that_nobody_has_sent(
    server: RunningServer, regex: str
) -> None:
    """So that no time to a first token tells of it either."""
    constraint = Constraint(regex=regex) if regex else None
    first_id = 600 if regex else 700

    cold, of_another, ones_own = [
        await work_of(server, first_id, who, constraint) for who in (A, B, A)
    ]

    assert cold == Work(num_cached=0, num_computed=PROMPT_TOKENS, num_steps=cold.num_steps)
    assert of_another == cold
    assert ones_own.num_steps == 1
    assert cold.num_steps > PROMPT_TOKENS // STEP_TOKENS


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
    for number, constraint in enumerate((None, Constraint(regex="[a-f]{4}"))):
        asked = [f"{number} {text}", "And then?"]
        first, of_another, again = [
            [await turn_work(server, session, who, text, constraint) for text in asked]
            for who in (A, B, A)
            for session in [await new_session(server, who)]
        ]

        # A second turn computes no more than what is new in it.
        assert first[0].num_steps > 1
        assert first[1].num_steps == 1
        assert of_another == first
        assert again[0].num_cached > first[0].num_cached
        assert again[0].num_steps < first[0].num_steps


async def new_session(server: RunningServer, who: object) -> str:
    created = await server.sessions.CreateSession(
        CreateSessionRequest(), metadata=who, timeout=LIMIT_S
    )
    return str(created.name)


async def turn_work(
    server: RunningServer, session: str, who: object, text: str, constraint: Constraint | None
) -> Work:
    item = Item(message=ChatMessage(role=Role.ROLE_USER, text=text))
    config = GenerationConfig(stop=StopConditions(max_output_tokens=1), constraint=constraint)
    turn = RunTurnRequest(session=session, turn=StartTurn(items=[item], config=config))
    call = server.sessions.RunTurn(turn, metadata=who, timeout=LIMIT_S)
    (completed,) = [event.completed async for event in call if event.HasField("completed")]
    left = await server.sessions.GetSession(
        GetSessionRequest(name=session), metadata=who, timeout=LIMIT_S
    )
    assert left.residency.device_tokens > 0
    return Work.of(completed.usage, completed.timings)


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
