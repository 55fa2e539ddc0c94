"""Calls that were told are the same behind every crash: same ids, same arguments, none twice."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import grpc
import pytest
import tokenizers
from antiphon.v1 import session_pb2_grpc
from antiphon.v1.session_pb2 import RunTurnRequest, StartTurn, TurnEvent
from antiphon.v1.types_pb2 import (
    FinishReason,
    GenerationConfig,
    Output,
    SamplingParams,
    StopConditions,
    Tool,
    ToolCall,
    ToolChoice,
)

from support.answers import LIMIT_S, fold_turn
from support.calling_models import calls_of
from support.chat_templates import CHATML_WITH_TOOLS
from support.engine_zygote import forked
from support.serve_command import Command, serve_runner
from support.session_rows import user
from support.tiny_checkpoints import TinyModel, make_checkpoint
from support.tiny_tokenizers import save_byte_level_tokenizer
from support.turn_runs import events_of_turn, new_session

CODE = {
    "type": "object",
    "properties": {"code": {"type": "string", "pattern": "^[a-f]{24}$"}},
    "required": ["code"],
    "additionalProperties": False,
}
TOOLS = [Tool(name="open", parameters_json_schema=json.dumps(CODE))]
MAX_TOKENS = 320
NUM_CALLS = 3
"""At least so many are in so many tokens."""


@dataclass(frozen=True, slots=True)
class Client:
    """A connection to a server in a process of its own."""

    sessions: session_pb2_grpc.SessionServiceStub


def kill_engine(command: Command) -> None:
    os.kill(command.engine_id(), signal.SIGKILL)


def kill_server(command: Command) -> None:
    command.end(signal.SIGKILL)


def kill_both(command: Command) -> None:
    kill_engine(command)
    kill_server(command)


@asynccontextmanager
async def connected(command: Command) -> AsyncIterator[Client]:
    address = await asyncio.to_thread(command.read_address)
    async with grpc.aio.insecure_channel(address) as channel:
        yield Client(session_pb2_grpc.SessionServiceStub(channel))


async def told_around(
    client: Client, session: str, start: StartTurn, kill: Callable[[], None]
) -> list[TurnEvent]:
    """Reads a turn until its first call is told, kills, and reads what still comes."""
    call = client.sessions.RunTurn(RunTurnRequest(session=session, turn=start), timeout=LIMIT_S)
    events = [await call.read()]
    while not events[-1].HasField("tool_call"):
        events.append(await call.read())
    await asyncio.to_thread(kill)
    # A server that is killed ends the stream with an error.
    with suppress(grpc.aio.AioRpcError):
        while (event := await call.read()) is not grpc.aio.EOF:
            events.append(event)
    return events


def calls_in(events: Sequence[TurnEvent]) -> list[ToolCall]:
    return [event.tool_call for event in events if event.HasField("tool_call")]


def calling_turn(checkpoint: Path) -> StartTurn:
    """A turn that calls and calls, and runs out of tokens inside a call."""
    tokenizer = tokenizers.Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    end_id = tokenizer.token_to_id("<|im_end|>")
    config = GenerationConfig(
        sampling=SamplingParams(temperature=1, seed=13, logit_bias={end_id: -100}),
        stop=StopConditions(max_output_tokens=MAX_TOKENS),
        tool_choice=ToolChoice(mode=ToolChoice.MODE_REQUIRED),
    )
    return StartTurn(turn_id="t1", items=[user("Open them")], config=config)


@pytest.mark.asyncio
async def test_a_call_that_was_told_stays_whatever_is_killed(tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path / "checkpoint", TinyModel(context_tokens=1024))
    save_byte_level_tokenizer(checkpoint, chat_template=CHATML_WITH_TOOLS)
    start = calling_turn(checkpoint)
    flags = (
        *("--store", str(tmp_path / "sessions.db")),
        *("--set", "engine.restart_delay_s=0.05"),
        # Nothing is kept of a turn that runs but what must be.
        *("--set", "sessions.checkpoint_interval_s=600"),
        *("--set", "sessions.checkpoint_tokens=100000"),
    )

    def check(told: Sequence[TurnEvent], whole: Output) -> None:
        calls = list(whole.tool_calls)
        assert calls_of(whole) == calls_of(calm)
        assert whole.finish_reason == FinishReason.FINISH_REASON_MAX_OUTPUT_TOKENS
        assert len({call.call_id for call in calls}) == len(calls)
        assert calls[: len(calls_in(told))] == calls_in(told)

    engine_command = forked("antiphon_engine")
    with serve_runner(tmp_path, checkpoint, engine_command=engine_command) as runner:
        command = runner.start(*flags)
        async with connected(command) as client:
            session = await new_session(client, tools=TOOLS)
            calm = fold_turn(await events_of_turn(client, session, start))
            assert len(calm.tool_calls) >= NUM_CALLS

            session = await new_session(client, tools=TOOLS)
            told = await told_around(client, session, start, partial(kill_engine, command))
            check(told, fold_turn(told))

            session = await new_session(client, tools=TOOLS)
            told = await told_around(client, session, start, partial(kill_server, command))
        command = runner.start(*flags)
        async with connected(command) as client:
            check(told, fold_turn(await events_of_turn(client, session, start)))

            session = await new_session(client, tools=TOOLS)
            told = await told_around(client, session, start, partial(kill_both, command))
        command = runner.start(*flags)
        async with connected(command) as client:
            check(told, fold_turn(await events_of_turn(client, session, start)))
