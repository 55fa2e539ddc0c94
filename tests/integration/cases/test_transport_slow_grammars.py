"""Constraints that take long to look into: streams, health and other constraints go on beside them.

The process that looks into them is told how long by their texts; nothing here is a matter of time.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio
from antiphon.v1.inference_pb2 import GenerateRequest, ValidateConstraintRequest
from antiphon.v1.types_pb2 import Constraint, FinishReason, SamplingParams, StopConditions
from grpc_health.v1 import health_pb2

from support.answers import LIMIT_S
from support.canary import Canary
from support.fake_checker import fork_fake_checker, noted_jobs
from support.real_server import scripted_engine, scripted_server
from support.sampling_calls import RunningCall, request_for, token_ids_of
from support.scripted_engine import Script
from support.server import RunningServer
from support.tiny_tokenizers import save_byte_level_tokenizer

pytestmark = pytest.mark.asyncio(loop_scope="module")

GREEDY = SamplingParams(temperature=0)
SERVING = health_pb2.HealthCheckResponse.SERVING
NUM_SLOW = 2
"""As many as the checker looks into at a time."""
NUM_WAITING = 3
"""So many more wait for their turn."""


@dataclass(frozen=True, slots=True)
class Slow:
    """A server, and what its checker has begun with."""

    server: RunningServer
    notes: Path

    async def until_begun(self, texts: set[str]) -> None:
        async with asyncio.timeout(LIMIT_S):
            while not texts <= {text for _, text in noted_jobs(self.notes)}:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    async def is_serving(self) -> bool:
        answer = await self.server.health.Check(health_pb2.HealthCheckRequest(), timeout=LIMIT_S)
        return bool(answer.status == SERVING)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def one(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[Slow, Canary]]:
    directory = tmp_path_factory.mktemp("slow")
    tokenizer = save_byte_level_tokenizer(directory)
    script = Script(texts={"*": [300]}, step_delay_s=0.001)
    async with (
        scripted_engine(directory, script) as engine,
        scripted_server(
            directory,
            tokenizer,
            engine,
            # So much processor time that none is taken for one that hangs.
            settings=[f"constraints.check_workers={NUM_SLOW}", "constraints.check_limit_s=5"],
            checker_command=fork_fake_checker(directory / "notes"),
        ) as server,
    ):
        canary = await Canary.of(server)
        yield Slow(server, directory / "notes"), canary
        await canary.check()


@pytest_asyncio.fixture(loop_scope="module")
async def slow(one: tuple[Slow, Canary]) -> AsyncIterator[Slow]:
    """A server that looks into constraints as long as it is told; each test leaves it at rest."""
    yield one[0]
    await one[1].check_rest()


def held_to(text: str) -> GenerateRequest:
    request = request_for(GREEDY, stop=StopConditions(max_output_tokens=200))
    request.config.constraint.regex = text
    return request


async def test_streams_go_on_while_constraints_are_looked_into(slow: Slow, tmp_path: Path) -> None:
    server, gate = slow.server, tmp_path / "gate"
    plain = request_for(GREEDY, num_tokens=300)
    alone = await token_ids_of(server, plain)
    texts = [f"until {gate}{'/' * number}" for number in range(NUM_SLOW + NUM_WAITING)]
    guided = [
        asyncio.ensure_future(server.inference.Generate(held_to(text), timeout=LIMIT_S))
        for text in texts
    ]
    tried = asyncio.ensure_future(
        server.inference.ValidateConstraint(
            ValidateConstraintRequest(constraint=Constraint(regex=texts[0])), timeout=LIMIT_S
        )
    )
    await slow.until_begun(set(texts[:NUM_SLOW]))

    # These begin and end while the checker is at those.
    streams = [RunningCall(server, plain) for _ in range(3)]
    told = [await stream.token_ids() for stream in streams]
    serving = await slow.is_serving()
    done = [call.done() for call in (*guided, tried)]
    begun = {text for _, text in noted_jobs(slow.notes)}
    gate.touch()
    answers = await asyncio.gather(*guided)

    assert told == [alone] * 3
    assert serving
    assert not any(done)
    assert begun == set(texts[:NUM_SLOW])
    assert (await tried).valid
    for answer, text in zip(answers, texts, strict=True):
        (output,) = answer.outputs
        assert len(output.text) == len(f"of {text}")
        assert output.finish_reason == FinishReason.FINISH_REASON_STOP
