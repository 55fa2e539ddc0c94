"""Sessions that are closed while their turns run: each turn is cut, and nothing is left of it.

The model can't end: what it may say is far more than it can before the calls are out of time.
"""

import asyncio
from collections.abc import AsyncIterator
from functools import partial

import grpc
import pytest
import pytest_asyncio
import tokenizers
from antiphon.v1.session_pb2 import (
    DeleteSessionRequest,
    GetSessionRequest,
    RunTurnRequest,
    StartTurn,
    TurnEvent,
)
from antiphon.v1.types_pb2 import (
    Constraint,
    FinishReason,
    GenerationConfig,
    SamplingParams,
    StopConditions,
)

from support.answers import LIMIT_S
from support.canary import Canary
from support.real_server import scripted_engine, scripted_server
from support.refusals import refusal_of
from support.scripted_engine import Script
from support.server import RunningServer
from support.session_rows import user
from support.tiny_tokenizers import save_byte_level_tokenizer
from support.turn_runs import new_session

pytestmark = pytest.mark.asyncio(loop_scope="module")

NUM_ROWS = 4
NUM_BUSY = 10
"""More than run at a time: the others wait."""
STEP_S = 0.005
CONTEXT_TOKENS = round(4 * LIMIT_S / STEP_S)
CONSTRAINTS = (None, Constraint(regex="a+b"))
"""Both go on for ever: the model wants nothing but the letter."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RunningServer]:
    directory = tmp_path_factory.mktemp("closed")
    tokenizer = save_byte_level_tokenizer(directory)
    reference = tokenizers.Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    (letter,) = reference.encode("a").ids
    script = Script(texts={"*": [letter]}, context_tokens=CONTEXT_TOKENS, step_delay_s=STEP_S)
    settings = [
        f"engine.kv_cache_tokens={NUM_ROWS * CONTEXT_TOKENS}",
        f"engine.max_rows={NUM_ROWS}",
    ]
    async with (
        scripted_engine(directory, script, settings=settings) as engine,
        scripted_server(directory, tokenizer, engine) as running,
    ):
        canary = await Canary.of(running)
        yield running
        await canary.check()


def without_end(constraint: Constraint | None) -> GenerationConfig:
    return GenerationConfig(
        sampling=SamplingParams(temperature=0),
        stop=StopConditions(
            max_output_tokens=CONTEXT_TOKENS // 2, ignore_eos=None if constraint else True
        ),
        constraint=constraint,
    )


async def end_of(call: grpc.aio.UnaryStreamCall) -> str:
    """Reads a turn on to its end, and returns how that was told."""
    last = TurnEvent()
    try:
        while (event := await call.read()) is not grpc.aio.EOF:
            last = event
    except grpc.aio.AioRpcError as error:
        return str(error.code().name)
    return FinishReason.Name(last.completed.finish_reason)


async def test_busy_sessions_are_closed_and_their_turns_cut(server: RunningServer) -> None:
    names = [await new_session(server) for _ in range(NUM_BUSY)]
    calls = []
    for number, name in enumerate(names):
        start = StartTurn(items=[user("Say it")], config=without_end(CONSTRAINTS[number % 2]))
        call = server.sessions.RunTurn(RunTurnRequest(session=name, turn=start), timeout=LIMIT_S)
        assert (await call.read()).HasField("accepted")
        calls.append(call)
        # Before the next begins: one that waits for its grammar would be overtaken.
        while number < NUM_ROWS and not (await call.read()).HasField("delta"):
            pass

    # Those that wait first: else they would begin as others end.
    for some in (names[NUM_ROWS:], names[:NUM_ROWS]):
        await asyncio.gather(*(delete(server, name) for name in some))
    ends = [await end_of(call) for call in calls]
    gone = [await refusal_of(partial(server.sessions.GetSession, get(name))) for name in names]

    # Those that ran are told of as cut; those that had not begun leave nothing.
    assert ends == ["FINISH_REASON_CANCELLED"] * NUM_ROWS + ["CANCELLED"] * (NUM_BUSY - NUM_ROWS)
    assert {refusal.reason for refusal in gone} == {"SESSION_NOT_FOUND"}


async def delete(server: RunningServer, name: str) -> None:
    await server.sessions.DeleteSession(DeleteSessionRequest(name=name), timeout=LIMIT_S)


def get(name: str) -> GetSessionRequest:
    return GetSessionRequest(name=name)
