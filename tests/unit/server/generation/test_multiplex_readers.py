"""Readers of multiplexed streams that are slow, stay away, or come back."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import grpc
import msgspec
from antiphon.v1.inference_pb2 import GenerateRequest
from antiphon.v1.inference_pb2_grpc import InferenceServiceStub
from antiphon.v1.types_pb2 import (
    GenerationConfig,
    OutputOptions,
    Prompt,
    SamplingParams,
    StopConditions,
)

from antiphon_server.offload import Offload
from antiphon_server.services.multiplex import MultiplexLimits
from support.fake_engine import FACTS, FakeEngine
from support.inference_server import InferenceServer, inference_server
from support.multiplexing import Multiplexer
from support.served_models import TextSide, served_model

MAX_BYTES = 128 << 10
NUM_REQUESTS = 4
NUM_TOKENS = 1000
SMALL_WINDOW = (("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 1 << 16))


def long_answer(seed: int) -> GenerateRequest:
    """A request whose every token comes with much beside it."""
    return GenerateRequest(
        prompt=Prompt(text="go on"),
        config=GenerationConfig(
            sampling=SamplingParams(seed=seed),
            stop=StopConditions(max_output_tokens=NUM_TOKENS, ignore_eos=True),
            output=OutputOptions(top_logprobs=20),
        ),
    )


@asynccontextmanager
async def serving(
    text: TextSide, offload: Offload, *, grace_s: float
) -> AsyncIterator[tuple[FakeEngine, InferenceServer, Multiplexer]]:
    facts = msgspec.structs.replace(FACTS, context_tokens=4096, kv_cache_tokens=65_536)
    engine = FakeEngine(facts=facts)
    limits = MultiplexLimits(max_undelivered_bytes=MAX_BYTES, grace_s=grace_s)
    model = served_model(text, engine)
    async with inference_server(model, offload, multiplex_limits=limits) as server:
        target = server.target
        async with grpc.aio.insecure_channel(target, options=SMALL_WINDOW) as channel:
            yield engine, server, Multiplexer(InferenceServiceStub(channel))


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - polls what another party changes
            await asyncio.sleep(0.005)


def all_held(engine: FakeEngine) -> bool:
    open_ones = [request for request in engine.requests if not request.ended]
    return len(open_ones) == NUM_REQUESTS and all(request.held for request in open_ones)


async def test_requests_of_a_slow_reader_are_held_and_go_on_without_a_loss(
    text: TextSide, offload: Offload
) -> None:
    async with serving(text, offload, grace_s=60) as (engine, server, caller):
        for tag in range(NUM_REQUESTS):
            await caller.start(tag, long_answer(tag))
        await until(lambda: all_held(engine))
        num_steps = engine.num_steps
        other = [e async for e in server.stub.StreamGenerate(long_answer(99))]

        # Steps were made for the other alone.
        assert engine.num_steps > num_steps
        assert all_held(engine)
        assert all(len(r.outputs[0].token_ids) < NUM_TOKENS for r in engine.requests[:-1])
        status = await caller.finish()

        assert status is grpc.StatusCode.OK
        assert other[-1].HasField("completed")
        for tag in range(NUM_REQUESTS):
            alone = [e async for e in server.stub.StreamGenerate(long_answer(tag))]
            told = caller.told[tag]
            assert told.text == "".join(event.delta.text for event in alone)
            assert [p.chosen for e in told.events for p in e.delta.logprobs] == [
                p.chosen for e in alone for p in e.delta.logprobs
            ]


async def test_reader_that_stays_away_loses_its_stream_and_frees_what_it_held(
    text: TextSide, offload: Offload
) -> None:
    async with serving(text, offload, grace_s=0.3) as (engine, server, caller):
        for tag in range(NUM_REQUESTS):
            await caller.start(tag, long_answer(tag))

        await until(lambda: len(engine.requests) == NUM_REQUESTS)
        await until(lambda: all(request.ended for request in engine.requests))
        num_waiting = server.generator.admission.num_waiting
        assert (num_waiting, server.generator.admission.num_running) == (0, 0)
        assert all(len(r.outputs[0].token_ids) < NUM_TOKENS for r in engine.requests)
        status = await caller.end()

        assert status is grpc.StatusCode.RESOURCE_EXHAUSTED
        error = grpc.aio.AioRpcError(
            status,
            await caller.call.initial_metadata(),
            await caller.call.trailing_metadata(),
            details=await caller.call.details(),
        )
        assert server.reason_of(error) == "SLOW_CONSUMER"
        assert not any(told.num_ends for told in caller.told.values())


async def test_reader_that_reads_a_little_within_the_grace_keeps_its_stream(
    text: TextSide, offload: Offload
) -> None:
    async with serving(text, offload, grace_s=1.0) as (engine, _, caller):
        for tag in range(NUM_REQUESTS):
            await caller.start(tag, long_answer(tag))
        await until(lambda: all_held(engine))

        # For longer than the grace in all, never for as long at a time.
        for _ in range(4):
            await asyncio.sleep(0.4)
            num_bytes = 0
            while num_bytes < 1.5 * MAX_BYTES:
                caller.note(frame := await caller.call.read())
                num_bytes += frame.ByteSize()
        await caller.call.done_writing()
        while (frame := await caller.call.read()) is not grpc.aio.EOF:
            caller.note(frame)

        assert await caller.call.code() is grpc.StatusCode.OK
        assert all(caller.told[tag].num_ends == 1 for tag in range(NUM_REQUESTS))
