"""What guides outputs is let go of when their caller hangs up, and outlives what checks them."""

import os
import re
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
import pytest_asyncio
from antiphon.v1 import inference_pb2_grpc
from antiphon.v1.inference_pb2 import GenerateRequest, StreamGenerateResponse
from antiphon.v1.types_pb2 import FinishReason, SamplingParams, StopConditions

from support.answers import LIMIT_S, fold
from support.canary import Canary, at_rest
from support.real_server import real_server
from support.sampling_calls import request_for
from support.serve_command import checkers_of, fork_of
from support.server import RunningServer

pytestmark = pytest.mark.asyncio(loop_scope="session")

STOP = FinishReason.FINISH_REASON_STOP
LONG = "([a-f]{3}[0-9]-){50}[a-f]{3}[0-9]"
NUM_CALLS = 3

DELAY_MS = 4
"""Of each step: so outputs of LONG take a second at least, which callers are told of meanwhile."""

Call = grpc.aio.UnaryStreamCall[GenerateRequest, StreamGenerateResponse]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def slow_canary(
    tmp_path_factory: pytest.TempPathFactory, tiny_checkpoint: Path
) -> AsyncIterator[Canary]:
    settings = [f"engine.fault_delay_commit_ms={DELAY_MS}"]
    directory = tmp_path_factory.mktemp("slow")
    async with real_server(directory, tiny_checkpoint, settings=settings) as server:
        canary = await Canary.of(server)
        yield canary
        await canary.check()


@pytest_asyncio.fixture(loop_scope="session")
async def slow(slow_canary: Canary) -> AsyncIterator[RunningServer]:
    """A server of a tiny random model; each test leaves it as it was."""
    yield slow_canary.server
    await slow_canary.check_rest()


def guided(regex: str, seed: int = 0) -> GenerateRequest:
    request = request_for(
        SamplingParams(temperature=1, seed=seed), stop=StopConditions(max_output_tokens=300)
    )
    request.config.constraint.regex = regex
    return request


async def begun(stub: inference_pb2_grpc.InferenceServiceStub) -> list[tuple[Call, list]]:
    """Returns calls that run, with what was read of each."""
    calls = [
        (stub.StreamGenerate(guided(LONG, seed), timeout=LIMIT_S), []) for seed in range(NUM_CALLS)
    ]
    for call, read in calls:
        while not (read and read[-1].HasField("delta")):
            read.append(await call.read())
    return calls


async def num_guides(server: RunningServer) -> int:
    return (await server.engine.stats()).num_guides


async def test_guides_are_let_go_of_when_callers_hang_up(slow: RunningServer) -> None:
    async with grpc.aio.insecure_channel(slow.target) as channel:
        await begun(inference_pb2_grpc.InferenceServiceStub(channel))
        held = await num_guides(slow)

    await at_rest(slow)
    assert held == NUM_CALLS
    assert await num_guides(slow) == 0


async def test_guides_are_let_go_of_when_callers_cancel(slow: RunningServer) -> None:
    calls = await begun(slow.inference)
    held = await num_guides(slow)
    for call, _ in calls:
        call.cancel()

    await at_rest(slow)
    assert held == NUM_CALLS
    assert await num_guides(slow) == 0


async def test_guided_outputs_outlive_the_processes_that_check_them(slow: RunningServer) -> None:
    calls = await begun(slow.inference)
    checkers = checkers_of(os.getpid())
    # Not looked into yet.
    waiting = slow.inference.Generate(guided("(abba){1,2}"), timeout=LIMIT_S)

    for checker in checkers:
        os.kill(fork_of(checker) or checker, signal.SIGKILL)
    answer = await waiting
    for call, read in calls:
        while (response := await call.read()) is not grpc.aio.EOF:
            read.append(response)

    assert checkers
    assert re.fullmatch("(abba){1,2}", answer.outputs[0].text)
    for _, read in calls:
        (output,) = fold(read, 1).outputs
        assert (output.finish_reason, bool(re.fullmatch(LONG, output.text))) == (STOP, True)
    await at_rest(slow)
    assert await num_guides(slow) == 0
