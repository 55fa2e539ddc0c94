"""Turns within constraints: defaults, interruptions and crashes keep to them."""

import asyncio
import json
import os
import re
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
from antiphon.v1 import session_pb2_grpc
from antiphon.v1.session_pb2 import GetTurnRequest, RunTurnRequest, StartTurn, TurnEvent
from antiphon.v1.types_pb2 import (
    Constraint,
    FinishReason,
    GenerationConfig,
    OutputOptions,
    SamplingParams,
    StopConditions,
)
from google.protobuf.empty_pb2 import Empty

from support.answers import LIMIT_S, fold_turn
from support.engine_zygote import forked
from support.serve_command import Command, serve_runner
from support.server import RunningServer, details_of
from support.session_rows import user
from support.turn_runs import events_of_turn, new_session

STOP = FinishReason.FINISH_REASON_STOP
LONG = "([a-f]{3}[0-9]-){50}[a-f]{3}[0-9]"
"""Of 254 characters: it says where it would be if it were begun anew."""


def guided(turn_id: str, constraint: Constraint | None, **values: object) -> StartTurn:
    config = GenerationConfig(
        sampling=SamplingParams(temperature=1, seed=13),
        stop=StopConditions(max_output_tokens=300),
        output=OutputOptions(token_ids=True),
        constraint=constraint,
    )
    return StartTurn(turn_id=turn_id, items=[user("Say it")], config=config, **values)


@pytest.mark.asyncio(loop_scope="session")
async def test_a_sessions_constraint_holds_until_a_turn_lifts_it(tiny: RunningServer) -> None:
    defaults = GenerationConfig(constraint=Constraint(regex="[xyz]{3}"))
    session = await new_session(tiny, defaults=defaults)

    by_default = fold_turn(await events_of_turn(tiny, session, guided("t1", None)))
    own = guided("t2", Constraint(json_schema='{"enum":["other"]}'))
    replaced = fold_turn(await events_of_turn(tiny, session, own))
    lifted = guided("t3", Constraint(none=Empty()))
    lifted.config.stop.ignore_eos = True
    lifted.config.stop.max_output_tokens = 20
    free = fold_turn(await events_of_turn(tiny, session, lifted))
    again = fold_turn(await events_of_turn(tiny, session, guided("t4", None)))

    waits = [
        (
            await tiny.sessions.GetTurn(
                GetTurnRequest(name=f"{session}/turns/{turn_id}"), timeout=LIMIT_S
            )
        ).timings
        for turn_id in ("t1", "t3")
    ]

    assert 0 < waits[0].grammar_wait.ToNanoseconds() <= waits[0].queue.ToNanoseconds()
    assert not waits[1].HasField("grammar_wait")
    assert re.fullmatch("[xyz]{3}", by_default.text)
    assert json.loads(replaced.text) == "other"
    assert free.finish_reason == FinishReason.FINISH_REASON_MAX_OUTPUT_TOKENS
    assert re.fullmatch("[xyz]{3}", again.text)


@pytest.mark.asyncio(loop_scope="session")
async def test_a_refused_turn_leaves_no_trace(tiny: RunningServer) -> None:
    session = await new_session(tiny)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await events_of_turn(tiny, session, guided("t1", Constraint(regex="(a")))

    assert details_of(caught.value)["ErrorInfo"].reason == "UNSUPPORTED_CONSTRAINT"
    (violation,) = details_of(caught.value)["BadRequest"].field_violations
    assert violation.field == "turn.config.constraint.regex"
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await tiny.sessions.GetTurn(GetTurnRequest(name=f"{session}/turns/t1"), timeout=LIMIT_S)
    assert details_of(caught.value)["ErrorInfo"].reason == "TURN_NOT_FOUND"


@pytest.mark.asyncio(loop_scope="session")
async def test_an_interrupted_turn_keeps_a_beginning_and_the_next_one_its_own_constraint(
    tiny: RunningServer,
) -> None:
    session = await new_session(tiny)
    request = RunTurnRequest(session=session, turn=guided("t1", Constraint(regex=LONG)))
    running = tiny.sessions.RunTurn(request, timeout=LIMIT_S)
    while not (await running.read()).HasField("delta"):
        pass
    interrupting = guided("t2", Constraint(regex="[uvw]{4}"), if_busy=StartTurn.IF_BUSY_INTERRUPT)

    second = fold_turn(await events_of_turn(tiny, session, interrupting))

    first = await tiny.sessions.GetTurn(GetTurnRequest(name=f"{session}/turns/t1"), timeout=LIMIT_S)
    assert re.fullmatch("[uvw]{4}", second.text)
    assert first.output.finish_reason == FinishReason.FINISH_REASON_CANCELLED
    assert re.fullmatch("(([a-f]{3}[0-9]-)*)[a-f]{0,3}[0-9]?", first.output.text)
    assert len(first.output.text) < 254


@pytest.mark.asyncio(loop_scope="session")
async def test_to_go_on_with_an_answer_does_not_go_with_a_constraint(tiny: RunningServer) -> None:
    session = await new_session(tiny)
    cut = guided("t1", Constraint(regex=LONG))
    cut.config.stop.max_output_tokens = 5
    await events_of_turn(tiny, session, cut)
    going_on = guided("t2", Constraint(regex=LONG), continue_answer=True)
    del going_on.items[:]

    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await events_of_turn(tiny, session, going_on)

    (violation,) = details_of(caught.value)["BadRequest"].field_violations
    assert violation.field == "turn.continue_answer"


@dataclass(frozen=True, slots=True)
class Client:
    """A connection to a server in a process of its own."""

    sessions: session_pb2_grpc.SessionServiceStub


@asynccontextmanager
async def connected(command: Command) -> AsyncIterator[Client]:
    address = await asyncio.to_thread(command.read_address)
    async with grpc.aio.insecure_channel(address) as channel:
        yield Client(session_pb2_grpc.SessionServiceStub(channel))


def kill_engine(command: Command) -> None:
    os.kill(command.engine_id(), signal.SIGKILL)


def kill_server(command: Command) -> None:
    command.end(signal.SIGKILL)


async def read(call: grpc.aio.UnaryStreamCall, num_pieces: int = 1 << 20) -> list[TurnEvent]:
    """Reads a turn's events to its end, or up to so many pieces of its text."""
    events: list[TurnEvent] = []
    while sum(event.HasField("delta") for event in events) < num_pieces:
        event = await call.read()
        if event is grpc.aio.EOF:
            break
        events.append(event)
    return events


@pytest.mark.asyncio
async def test_a_crash_does_not_begin_a_grammar_anew(tmp_path: Path, tiny_checkpoint: Path) -> None:
    flags = (
        *("--store", str(tmp_path / "sessions.db")),
        *("--set", "engine.restart_delay_s=0.05"),
        *("--set", "sessions.checkpoint_interval_s=0.05"),
    )
    start = guided("t1", Constraint(regex=LONG))
    engine_command = forked("antiphon_engine")
    with serve_runner(tmp_path, tiny_checkpoint, engine_command=engine_command) as runner:
        command = runner.start(*flags)
        async with connected(command) as client:
            calm = fold_turn(await events_of_turn(client, await new_session(client), start))
            assert calm.finish_reason == STOP
            assert re.fullmatch(LONG, calm.text)

            session = await new_session(client)
            call = client.sessions.RunTurn(RunTurnRequest(session=session, turn=start))
            events = await read(call, num_pieces=3)
            kill_engine(command)
            assert fold_turn([*events, *await read(call)]) == calm

            session = await new_session(client)
            call = client.sessions.RunTurn(RunTurnRequest(session=session, turn=start))
            await read(call, num_pieces=3)
            await asyncio.to_thread(kill_server, command)
        command = runner.start(*flags)
        async with connected(command) as client:
            assert fold_turn(await events_of_turn(client, session, start)) == calm
