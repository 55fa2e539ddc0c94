"""Forks, rewinds and answers that go on, with a real model and its cache."""

import itertools

import pytest
from antiphon.v1.session_pb2 import (
    HISTORY_POLICY_KEEP_TOKENS,
    HISTORY_POLICY_RERENDER,
    ForkSessionRequest,
    HistoryPoint,
    RewindSessionRequest,
    StartTurn,
)
from antiphon.v1.types_pb2 import FINISH_REASON_MAX_OUTPUT_TOKENS, GenerationConfig, Role

from support.answers import LIMIT_S
from support.server import RunningServer
from support.session_rows import user
from support.turn_runs import TurnRun, events_of_turn, greedy, new_session, read_run, run_turn, said

pytestmark = pytest.mark.asyncio(loop_scope="session")

LONG = greedy(40)
BLOCK_TOKENS = 16
QUESTION = user("Good morning, tell me of the rivers and the lakes and of all that lives in them")


def endless(max_output_tokens: int = 40) -> GenerationConfig:
    """A config under which no end token ends the answer."""
    config = greedy(max_output_tokens)
    config.stop.ignore_eos = True
    return config


async def two_turns(server: RunningServer, policy: int) -> tuple[str, TurnRun, TurnRun]:
    session = await new_session(server, history_policy=policy)
    first = await run_turn(server, session, [QUESTION], endless())
    second = await run_turn(server, session, [user("and a lake")], endless())
    return session, first, second


async def fork(server: RunningServer, session: str, turn: str = "") -> str:
    request = ForkSessionRequest(name=session, turn=turn)
    return str((await server.sessions.ForkSession(request, timeout=LIMIT_S)).name)


@pytest.mark.parametrize("behind", ["head", "first"])
async def test_the_first_turn_of_a_fork_reuses_the_shared_context(
    tiny: RunningServer, behind: str
) -> None:
    session = await new_session(tiny)
    start = StartTurn(turn_id="t1", items=[QUESTION], config=endless())
    first = read_run(await events_of_turn(tiny, session, start))
    second = await run_turn(tiny, session, [user("and a lake")], endless())
    shared = second if behind == "head" else first
    turn = "" if behind == "head" else f"{session}/turns/t1"

    branch = await fork(tiny, session, turn)
    run = await run_turn(tiny, branch, [user("Three names")], LONG)

    assert run.prompt_ids[: len(shared.context)] == shared.context
    # The last token's keys were never computed: nothing came behind it.
    assert run.usage.cached_prompt_tokens >= len(shared.context) - BLOCK_TOKENS


async def test_two_branches_and_their_root_say_what_each_would_alone(tiny: RunningServer) -> None:
    session, _, second = await two_turns(tiny, HISTORY_POLICY_KEEP_TOKENS)
    branch = await fork(tiny, session)

    ours = await run_turn(tiny, session, [user("One")], LONG)
    theirs = await run_turn(tiny, branch, [user("One")], LONG)
    other = await run_turn(tiny, branch, [user("Two")], LONG)

    assert ours == read_again(theirs, ours)
    assert other.prompt_ids[: len(theirs.context)] == theirs.context
    assert ours.prompt_ids[: len(second.context)] == second.context


def read_again(run: TurnRun, other: TurnRun) -> TurnRun:
    """A run with another's usage, which tells how much was cached."""
    return TurnRun(
        prompt_ids=run.prompt_ids,
        output_ids=run.output_ids,
        text=run.text,
        finish_reason=run.finish_reason,
        usage=other.usage,
    )


async def test_a_rewound_session_answers_as_before_from_its_cache(tiny: RunningServer) -> None:
    session = await new_session(tiny)
    start = StartTurn(turn_id="t1", items=[QUESTION], config=endless())
    first = read_run(await events_of_turn(tiny, session, start))
    second = await run_turn(tiny, session, [user("and a lake")], LONG)
    request = RewindSessionRequest(name=session, to=HistoryPoint(turn=f"{session}/turns/t1"))
    await tiny.sessions.RewindSession(request, timeout=LIMIT_S)

    again = await run_turn(tiny, session, [user("and a lake")], LONG)

    assert (again.prompt_ids, again.output_ids) == (second.prompt_ids, second.output_ids)
    assert again.usage.cached_prompt_tokens >= len(first.context) - BLOCK_TOKENS


@pytest.mark.parametrize("policy", [HISTORY_POLICY_KEEP_TOKENS, HISTORY_POLICY_RERENDER])
async def test_an_answer_in_parts_is_the_answer_in_one(tiny: RunningServer, policy: int) -> None:
    session, branch = [await new_session(tiny, history_policy=policy) for _ in range(2)]
    whole = await run_turn(tiny, session, [QUESTION], endless(24))

    parts = [await run_turn(tiny, branch, [QUESTION], endless(9))]
    for size in (1, 6, 8):
        start = StartTurn(continue_answer=True, config=endless(size))
        parts.append(read_run(await events_of_turn(tiny, branch, start)))
    behind = await run_turn(tiny, branch, [user("and a lake")], LONG)
    expected = await run_turn(tiny, session, [user("and a lake")], LONG)

    assert [token for part in parts for token in part.output_ids] == whole.output_ids
    assert all(part.finish_reason == FINISH_REASON_MAX_OUTPUT_TOKENS for part in parts)
    for earlier, part in itertools.pairwise(parts):
        assert part.prompt_ids == earlier.context
    assert behind.prompt_ids == expected.prompt_ids
    if policy == HISTORY_POLICY_RERENDER:
        items = [QUESTION, said(Role.ROLE_ASSISTANT, whole.text), user("and a lake")]
        rendered = tiny.model.renderer.render_conversation(items)
        assert behind.prompt_ids == rendered.token_ids
