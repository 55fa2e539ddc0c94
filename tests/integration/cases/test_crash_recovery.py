"""A server, its engine or both are killed in mid-turn: the client gets the undisturbed answer."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
from antiphon.v1 import session_pb2_grpc
from antiphon.v1.session_pb2 import (
    GetTurnRequest,
    ListTurnsRequest,
    RunTurnRequest,
    StartTurn,
    StreamTurnEventsRequest,
    Turn,
    TurnEvent,
)
from antiphon.v1.types_pb2 import GenerationConfig, OutputOptions, SamplingParams, StopConditions

from support.answers import LIMIT_S, fold_turn
from support.engine_zygote import forked
from support.serve_command import Command, Runner, serve_runner
from support.session_rows import user
from support.turn_runs import events_of_turn, new_session


def drawn(turn_id: str, text: str, *, num_tokens: int) -> StartTurn:
    config = GenerationConfig(
        sampling=SamplingParams(temperature=0.9, seed=11, frequency_penalty=0.5),
        stop=StopConditions(max_output_tokens=num_tokens, ignore_eos=True),
        output=OutputOptions(token_ids=True),
    )
    return StartTurn(turn_id=turn_id, items=[user(text)], config=config)


FIRST = drawn("first", "Tell me everything", num_tokens=350)
SECOND = drawn("second", "And then?", num_tokens=30)

RunTurnCall = grpc.aio.UnaryStreamCall[RunTurnRequest, TurnEvent]


@dataclass(frozen=True, slots=True)
class Client:
    """A connection to a server in a process of its own."""

    command: Command
    sessions: session_pb2_grpc.SessionServiceStub


@asynccontextmanager
async def served(runner: Runner) -> AsyncIterator[Client]:
    command = runner.start(
        *("--store", str(runner.directory / "sessions.db")),
        *("--set", "engine.restart_delay_s=0.05", "--set", "engine.stall_limit_s=2"),
        *("--set", "sessions.checkpoint_interval_s=0.05"),
    )
    address = await asyncio.to_thread(command.read_address)
    async with grpc.aio.insecure_channel(address) as channel:
        yield Client(command, session_pb2_grpc.SessionServiceStub(channel))


def kill_engine(command: Command) -> None:
    os.kill(command.engine_id(), signal.SIGKILL)


def stop_engine(command: Command) -> None:
    os.kill(command.engine_id(), signal.SIGSTOP)


def kill_server(command: Command) -> None:
    command.end(signal.SIGKILL)


def kill_both(command: Command) -> None:
    os.kill(command.engine_id(), signal.SIGKILL)
    command.end(signal.SIGKILL)


@pytest.mark.asyncio
async def test_killed_processes_cost_no_character(tmp_path: Path, tiny_checkpoint: Path) -> None:
    engine_command = forked("antiphon_engine")
    with serve_runner(tmp_path, tiny_checkpoint, engine_command=engine_command) as runner:
        async with served(runner) as client:
            session = await new_session(client)
            expected = [
                fold_turn(await events_of_turn(client, session, start)) for start in (FIRST, SECOND)
            ]
            for harm in (kill_engine, stop_engine):
                session = await new_session(client)
                first, second = await read_both(client, session, harm)
                assert [fold_turn(first), fold_turn(second)] == expected, harm
                assert len({event.epoch for event in first}) == 1
            session = await new_session(client)
            seen = await cut_off(client, session, kill_server)
        async with served(runner) as client:
            await check_taken_up(client, session, seen, expected)
            session = await new_session(client)
            seen = await cut_off(client, session, kill_both)
        async with served(runner) as client:
            await check_taken_up(client, session, seen, expected)


async def start_both(
    client: Client, session: str
) -> tuple[list[RunTurnCall], tuple[list[TurnEvent], list[TurnEvent]]]:
    """Starts both turns, one behind the other, and reads that they were accepted."""
    calls: list[RunTurnCall] = []
    told: tuple[list[TurnEvent], list[TurnEvent]] = ([], [])
    for start, events in zip((FIRST, SECOND), told, strict=True):
        request = RunTurnRequest(session=session, turn=start)
        calls.append(client.sessions.RunTurn(request, timeout=LIMIT_S))
        # Calls may overtake each other until then.
        events.append(await calls[-1].read())
        assert events[-1].HasField("accepted")
    return calls, told


async def read_both(
    client: Client, session: str, harm: Callable[[Command], None]
) -> tuple[list[TurnEvent], list[TurnEvent]]:
    """Starts two turns, does harm while the first one runs, and reads both to their ends."""
    calls, (first, second) = await start_both(client, session)
    while not first[-1].HasField("delta"):
        first.append(await calls[0].read())
    harm(client.command)
    for call, events in zip(calls, (first, second), strict=True):
        while (event := await call.read()) is not grpc.aio.EOF:
            events.append(event)
    return first, second


async def cut_off(client: Client, session: str, harm: Callable[[Command], None]) -> list[TurnEvent]:
    """Starts two turns, and reads the first one until the server is gone."""
    calls, (seen, _) = await start_both(client, session)
    while sum(event.HasField("delta") for event in seen) < 3:
        seen.append(await calls[0].read())
    ending = asyncio.create_task(asyncio.to_thread(harm, client.command))
    with contextlib.suppress(grpc.aio.AioRpcError):
        while (event := await calls[0].read()) is not grpc.aio.EOF:
            seen.append(event)
    await ending
    assert await calls[0].code() is grpc.StatusCode.UNAVAILABLE
    return seen


async def check_taken_up(
    client: Client, session: str, seen: list[TurnEvent], expected: list[object]
) -> None:
    """Checks that the next server has both turns, once and as they would have been."""
    partial = await client.sessions.GetTurn(
        GetTurnRequest(name=f"{session}/turns/first"), timeout=LIMIT_S
    )
    assert partial.epoch > seen[-1].epoch
    where_it_stood = StreamTurnEventsRequest(
        name=partial.name, after_sequence=seen[-1].sequence, epoch=seen[-1].epoch
    )
    call = client.sessions.StreamTurnEvents(where_it_stood, timeout=LIMIT_S)
    reset, *followed = [event async for event in call]
    assert reset.HasField("reset")
    assert fold_turn(followed) == expected[0]
    told = [await events_of_turn(client, session, start) for start in (FIRST, SECOND)]
    assert [fold_turn(events) for events in told] == expected
    assert "".join(event.delta.text for event in told[0]).startswith(
        "".join(event.delta.text for event in seen)
    )
    listed = await client.sessions.ListTurns(
        ListTurnsRequest(session=session, show_all=True), timeout=LIMIT_S
    )
    assert [turn.state for turn in listed.turns] == [Turn.STATE_COMPLETED] * 2
    assert [turn.output for turn in listed.turns] == expected
