"""Light calls are answered at once, whatever the server is busy with.

The server is a process of its own here, so that nothing that the test does holds it up.
"""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
from antiphon.v1 import admin_pb2_grpc, inference_pb2_grpc, model_pb2_grpc
from antiphon.v1.admin_pb2 import EngineStats, GetEngineStatsRequest
from antiphon.v1.inference_pb2 import GenerateRequest
from antiphon.v1.model_pb2 import TokenizeRequest
from antiphon.v1.types_pb2 import (
    Constraint,
    GenerationConfig,
    Prompt,
    SamplingParams,
    StopConditions,
    TokenIds,
)
from grpc_health.v1 import health_pb2, health_pb2_grpc

from support.engine_zygote import forked
from support.serve_command import Command, serve_runner
from support.server import details_of
from support.tiny_checkpoints import TinyModel, make_checkpoint
from support.tiny_tokenizers import save_byte_level_tokenizer

LIMIT_S = 100.0
NUM_LARGE_PROMPTS = 8
"""Of each, as much is encoded as might fit the context."""
CONTEXT_TOKENS = 4096
NUM_ROWS = 8
NUM_STREAMS = 100
MAX_QUEUED = NUM_STREAMS - NUM_ROWS
NUM_ENCODED = 12
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Command]:
    directory = tmp_path_factory.mktemp("served")
    made = make_checkpoint(directory / "tiny", TinyModel(context_tokens=CONTEXT_TOKENS))
    checkpoint = save_byte_level_tokenizer(made)
    engine_command = forked("antiphon_engine")
    with serve_runner(directory, checkpoint, engine_command=engine_command) as runner:
        yield runner.start(
            *("--admin-listen", f"unix:{directory}/admin.sock"),
            *("--set", f"engine.kv_cache_tokens={NUM_ROWS * CONTEXT_TOKENS}"),
            *("--set", f"engine.max_rows={NUM_ROWS}"),
            *("--set", "engine.stall_limit_s=2"),
            *("--set", f"limits.max_queued_requests={MAX_QUEUED}"),
        )


@pytest.fixture(scope="module")
def address(command: Command) -> str:
    return command.read_address()


@dataclass(frozen=True, slots=True)
class Served:
    """A busy server, and how it answers when it is not."""

    command: Command
    inference: inference_pb2_grpc.InferenceServiceStub
    tokenizer: model_pb2_grpc.TokenizerServiceStub
    health: health_pb2_grpc.HealthStub
    admin: admin_pb2_grpc.AdminServiceStub

    async def check(self) -> int:
        answer = await self.health.Check(health_pb2.HealthCheckRequest(), timeout=LIMIT_S)
        return int(answer.status)

    async def stats(self) -> EngineStats:
        return await self.admin.GetEngineStats(GetEngineStatsRequest(), timeout=LIMIT_S)

    async def until_waiting(self, num_waiting: int) -> None:
        async with asyncio.timeout(LIMIT_S):
            while (await self.stats()).num_waiting != num_waiting:  # noqa: ASYNC110 - no event
                await asyncio.sleep(0.01)

    async def fill(self) -> list[grpc.aio.UnaryStreamCall]:
        """Returns as many streams as the server takes: some run, the others wait."""
        streams = [self.inference.StreamGenerate(request_of()) for _ in range(NUM_ROWS)]
        for stream in streams:
            assert (await stream.read()).HasField("started")
        streams += [self.inference.StreamGenerate(request_of()) for _ in range(MAX_QUEUED)]
        await self.until_waiting(MAX_QUEUED)
        return streams

    async def until_idle(self) -> EngineStats:
        async with asyncio.timeout(LIMIT_S):
            while True:
                stats = await self.stats()
                if not stats.num_running + stats.num_waiting + stats.num_blocks_used:
                    return stats
                await asyncio.sleep(0.01)

    async def canary(self) -> str:
        answer = await self.inference.Generate(request_of(max_output_tokens=12), timeout=LIMIT_S)
        return str(answer.outputs[0].text)


@pytest.fixture
async def served(command: Command, address: str) -> AsyncIterator[Served]:
    (folder,) = {Path(word).parent for word in command.process.args if word.endswith(".db")}
    async with (
        grpc.aio.insecure_channel(address) as channel,
        grpc.aio.insecure_channel(f"unix:{folder}/admin.sock") as admin_channel,
    ):
        yield Served(
            command,
            inference_pb2_grpc.InferenceServiceStub(channel),
            model_pb2_grpc.TokenizerServiceStub(channel),
            health_pb2_grpc.HealthStub(channel),
            admin_pb2_grpc.AdminServiceStub(admin_channel),
        )


def request_of(text: str = "", *, max_output_tokens: int = CONTEXT_TOKENS - 100) -> GenerateRequest:
    prompt = Prompt(text=text) if text else Prompt(token_ids=TokenIds(ids=range(5, 45)))
    return GenerateRequest(
        prompt=prompt,
        config=GenerationConfig(
            sampling=SamplingParams(temperature=0),
            stop=StopConditions(max_output_tokens=max_output_tokens, ignore_eos=True),
        ),
    )


async def reason_of(call: Awaitable[object]) -> str:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return str(details_of(caught.value)["ErrorInfo"].reason)


class TextWork:
    """Long texts to encode, and large schemas to refuse, again and again until the block ends."""

    def __init__(self, served: Served) -> None:
        self.num_encoded = 0
        self.reasons: set[str] = set()
        self._served = served

    @contextlib.asynccontextmanager
    async def going_on(self) -> AsyncIterator[None]:
        # More at a time than there are threads for it.
        tasks = [asyncio.create_task(self._encode()) for _ in range(4)]
        tasks.append(asyncio.create_task(self._send_schemas()))
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            assert all(task.cancelled() for task in tasks)

    async def _encode(self) -> None:
        long = TokenizeRequest(text="a word and another " * 5_000)
        while True:
            await self._served.tokenizer.Tokenize(long, timeout=LIMIT_S)
            self.num_encoded += 1

    async def _send_schemas(self) -> None:
        request = request_of()
        request.config.constraint.CopyFrom(Constraint(json_schema='{"a": "%s"}' % ("x" * 200_000)))
        while True:
            self.reasons.add(
                await reason_of(self._served.inference.Generate(request, timeout=LIMIT_S))
            )
            await asyncio.sleep(0.05)


async def test_light_calls_are_answered_while_streams_queue_and_text_work_are_full(
    served: Served,
) -> None:
    baseline = await served.canary()
    engine_id = served.command.engine_id()
    watch = served.health.Watch(health_pb2.HealthCheckRequest(), timeout=LIMIT_S)
    assert (await watch.read()).status == SERVING
    streams = await served.fill()
    work = TextWork(served)

    async with work.going_on():
        statuses = []
        while work.num_encoded < NUM_ENCODED:
            statuses.append(await served.check())
        stats = await served.stats()
        refusal = await reason_of(served.inference.StreamGenerate(request_of()).read())
        streams[-1].cancel()
        await served.until_waiting(MAX_QUEUED - 1)

    assert set(statuses) == {SERVING}
    assert (stats.num_running, stats.num_waiting) == (NUM_ROWS, MAX_QUEUED)
    assert refusal == "OVERLOADED"
    assert work.reasons == {"INVALID_FIELD"}
    # Behind the texts, no more would have been answered than there were texts.
    assert len(statuses) > 2 * NUM_ENCODED
    assert not watch.done()
    watch.cancel()
    for stream in streams:
        stream.cancel()
    at_rest = await served.until_idle()
    assert at_rest.num_blocks_free + at_rest.num_blocks_cached == at_rest.num_blocks
    assert await served.canary() == baseline
    assert served.command.engine_id() == engine_id


async def test_streams_and_health_go_on_while_large_prompts_are_worked_on(served: Served) -> None:
    request = request_of(max_output_tokens=500)
    expected = (await served.inference.Generate(request, timeout=LIMIT_S)).outputs[0].text
    stream = served.inference.StreamGenerate(request, timeout=LIMIT_S)
    responses = [await stream.read(), await stream.read()]
    prompt = request_of("a word and another " * 40_000)
    large = asyncio.gather(
        *(
            reason_of(served.inference.Generate(prompt, timeout=LIMIT_S))
            for _ in range(NUM_LARGE_PROMPTS)
        )
    )

    statuses = []
    while not large.done() and responses[-1] is not grpc.aio.EOF:
        statuses.append(await served.check())
        responses.append(await stream.read())
    num_meanwhile = len(statuses)
    while responses[-1] is not grpc.aio.EOF:
        responses.append(await stream.read())

    assert set(await large) == {"CONTEXT_LENGTH_EXCEEDED"}
    assert set(statuses) == {SERVING}
    assert num_meanwhile > 5
    assert "".join(response.delta.text for response in responses[:-1]) == expected


async def test_engine_that_is_stuck_is_told_without_being_asked(served: Served) -> None:
    baseline = await served.canary()
    engine_id = served.command.engine_id()
    watch = served.health.Watch(health_pb2.HealthCheckRequest(), timeout=LIMIT_S)
    told = [(await watch.read()).status]
    streams = await served.fill()

    os.kill(engine_id, signal.SIGSTOP)
    told.append((await watch.read()).status)
    meanwhile = await served.check()
    refusal = await reason_of(served.inference.Generate(request_of(), timeout=LIMIT_S))
    ends = [await end_of(stream) for stream in streams]
    told.append((await watch.read()).status)

    assert told == [SERVING, NOT_SERVING, SERVING]
    assert meanwhile == NOT_SERVING
    assert refusal == "ENGINE_DOWN"
    assert set(ends) == {"ENGINE_DOWN"}
    assert await served.canary() == baseline
    assert served.command.engine_id() != engine_id


async def end_of(stream: grpc.aio.UnaryStreamCall) -> str:
    async def read_all() -> None:
        while await stream.read() is not grpc.aio.EOF:
            pass

    return await reason_of(read_all())
