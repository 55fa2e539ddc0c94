"""Sessions outlive the processes that serve them."""

import asyncio
import itertools
import os
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
import pytest_asyncio
from antiphon.v1 import session_pb2_grpc
from antiphon.v1.session_pb2 import (
    GetTurnRequest,
    ListTurnsRequest,
    RunTurnRequest,
    StartTurn,
    Turn,
)
from antiphon.v1.types_pb2 import GenerationConfig, StopConditions

from antiphon_engine.api.link import EngineLink
from support.answers import LIMIT_S
from support.canary import Canary
from support.engine_zygote import forked
from support.real_server import real_server
from support.serve_command import Command, Runner, serve_runner
from support.session_rows import user
from support.turn_runs import (
    TurnRun,
    events_of_turn,
    greedy,
    new_session,
    read_run,
    run_turn,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

QUESTIONS = ("Good morning", "Name three rivers", "and a lake", "Thank you")
INSTRUCTIONS = "You are brief."
CONFIG = greedy(20)
ENDLESS = GenerationConfig(stop=StopConditions(max_output_tokens=300, ignore_eos=True))
BLOCK_TOKENS = 8
LONG = StartTurn(turn_id="long", items=[user("Tell me everything")], config=greedy(300))


@dataclass(frozen=True, slots=True)
class Client:
    """A connection to a server in a process of its own."""

    sessions: session_pb2_grpc.SessionServiceStub


@dataclass(frozen=True, slots=True, kw_only=True)
class Lives:
    """A session that three server processes served one after another."""

    runs: list[TurnRun]
    """Two turns of the first process, which was told to stop; one of the second, which was killed
    while another ran; that one, which the third took up; one of the third."""
    control: list[TurnRun]
    """The same turns in a session that lived in one process."""
    listed: list[Turn]
    """What the third process had in the end."""


@asynccontextmanager
async def connected(runner: Runner) -> AsyncIterator[tuple[Command, Client]]:
    # The same store at every start: what is told over restarts lies there.
    store = str(runner.directory / "sessions.db")
    command = runner.start("--store", store, "--set", f"engine.block_tokens={BLOCK_TOKENS}")
    address = await asyncio.to_thread(command.read_address)
    async with grpc.aio.insecure_channel(address) as channel:
        yield command, Client(session_pb2_grpc.SessionServiceStub(channel))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def lives(tmp_path_factory: pytest.TempPathFactory, tiny_checkpoint: Path) -> Lives:
    directory = tmp_path_factory.mktemp("lives")
    engine_command = forked("antiphon_engine")
    with serve_runner(directory, tiny_checkpoint, engine_command=engine_command) as runner:
        async with connected(runner) as (command, client):
            session = await new_session(client, instructions=INSTRUCTIONS)
            runs = await ask_all(client, session, QUESTIONS[:2])
            exit_status, log = await asyncio.to_thread(command.end, signal.SIGTERM)
            assert exit_status == 0, log
        async with connected(runner) as (command, client):
            runs += await ask_all(client, session, QUESTIONS[2:3])
            await leave_running(client, session)
            await asyncio.to_thread(command.end, signal.SIGKILL)
        async with connected(runner) as (_, client):
            runs += [read_run(await events_of_turn(client, session, LONG))]
            runs += await ask_all(client, session, QUESTIONS[3:])
            request = ListTurnsRequest(session=session, show_all=True)
            listed = await client.sessions.ListTurns(request, timeout=LIMIT_S)
            whole = await new_session(client, instructions=INSTRUCTIONS)
            control = await ask_all(client, whole, QUESTIONS[:3])
            control += [read_run(await events_of_turn(client, whole, LONG))]
            control += await ask_all(client, whole, QUESTIONS[3:])
    return Lives(runs=runs, control=control, listed=list(listed.turns))


async def ask_all(client: Client, session: str, questions: Sequence[str]) -> list[TurnRun]:
    return [await run_turn(client, session, [user(text)], CONFIG) for text in questions]


async def leave_running(client: Client, session: str) -> None:
    """Starts a turn that goes on for long, and returns once it has said something."""
    call = client.sessions.RunTurn(RunTurnRequest(session=session, turn=LONG), timeout=LIMIT_S)
    while not (await call.read()).HasField("delta"):
        pass


async def test_turn_of_a_live_session_computes_only_what_is_new(lives: Lives) -> None:
    for earlier, run in [(lives.runs[0], lives.runs[1]), *itertools.pairwise(lives.control)]:
        context = earlier.context
        assert run.prompt_ids[: len(context)] == context
        cached = run.usage.cached_prompt_tokens
        assert (len(context) - 1) // BLOCK_TOKENS * BLOCK_TOKENS <= cached < len(run.prompt_ids)


async def test_next_turn_after_a_restart_goes_on_with_the_same_ids(lives: Lives) -> None:
    run, expected = lives.runs[2], lives.control[2]

    assert run.usage.cached_prompt_tokens == 0
    assert run.prompt_ids == expected.prompt_ids
    assert run.output_ids == expected.output_ids


async def test_turn_of_a_process_that_was_killed_is_taken_up_by_the_next(lives: Lives) -> None:
    taken_up, after = lives.runs[3:]

    assert (taken_up.text, taken_up.output_ids) == (
        lives.control[3].text,
        lives.control[3].output_ids,
    )
    assert after.prompt_ids == lives.control[4].prompt_ids
    assert after.output_ids == lives.control[4].output_ids


async def test_restarts_keep_every_turn_once(lives: Lives) -> None:
    assert {turn.state for turn in lives.listed} == {Turn.STATE_COMPLETED}
    kept_ids = [list(turn.output.token_ids) for turn in lives.listed]
    assert kept_ids == [run.output_ids for run in lives.control]


async def test_session_goes_on_with_the_same_ids_when_its_engine_is_replaced(
    tmp_path: Path, tiny_checkpoint: Path
) -> None:
    async with real_server(tmp_path, tiny_checkpoint) as server:
        assert isinstance(server.engine, EngineLink)
        session = await new_session(server)
        first = await run_turn(server, session, [user(QUESTIONS[0])], CONFIG)
        replaced = server.engine.process_id
        assert replaced is not None
        start = StartTurn(turn_id="long", items=[user("Go on")], config=ENDLESS)
        request = RunTurnRequest(session=session, turn=start)
        call = server.sessions.RunTurn(request, timeout=LIMIT_S)
        while not (await call.read()).HasField("started"):
            pass

        os.kill(replaced, signal.SIGKILL)

        await read_all(call)
        long = await server.sessions.GetTurn(GetTurnRequest(name=f"{session}/turns/long"))
        second = await run_turn(server, session, [user(QUESTIONS[1])], CONFIG)
        canary = await Canary.of(server)

    assert (long.state, long.usage.output_tokens) == (Turn.STATE_COMPLETED, 300)
    assert canary.engine_process_id != replaced
    assert second.prompt_ids[: len(first.context)] == first.context
    assert len(second.prompt_ids) > len(first.context) + 300


async def read_all(call: grpc.aio.UnaryStreamCall) -> None:
    while await call.read() is not grpc.aio.EOF:
        pass
