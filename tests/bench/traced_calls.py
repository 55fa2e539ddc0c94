"""Calls that are timed on the client's clock, and what a server's spans say of the same calls."""

import asyncio
import random
import secrets
import time
from dataclasses import dataclass

import grpc
from antiphon.v1 import inference_pb2, inference_pb2_grpc
from antiphon.v1.types_pb2 import (
    GenerationConfig,
    Prompt,
    SamplingParams,
    StopConditions,
    TokenIds,
)

from support.otlp_sink import OtlpSink

LIMIT_S = 300.0
_PHASES = ("queue", "prefill", "decode")


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """So many streams at a time."""

    num_streams: int
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """A call, in seconds since it was sent."""

    trace_id: str
    first_token_s: float
    last_token_s: float
    num_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What client and server say of one answer, each in seconds since it had the request."""

    first_token_s: float
    last_token_s: float
    told_first_token_s: float
    told_phases_s: float
    """Queue, prefill and decode."""


async def run_load(target: str, load: Load) -> int:
    """Runs all streams at once and returns how many tokens they brought."""
    draw = random.Random()
    async with grpc.aio.insecure_channel(target) as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        requests = [
            _request(draw, load.prompt_tokens, load.output_tokens) for _ in range(load.num_streams)
        ]
        timed = await asyncio.gather(*(_time(stub, request) for request in requests))
    return sum(each.num_tokens for each in timed)


async def warm_up(target: str, load: Load) -> None:
    """Runs the load once, so that nothing is done for the first time later."""
    await run_load(target, load)


async def ask(target: str, num: int) -> list[Timed]:
    """Asks for short answers, one behind the other."""
    draw = random.Random()
    async with grpc.aio.insecure_channel(target) as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        return [await _time(stub, _request(draw, 32, 4)) for _ in range(num)]


def spans_of(call: Timed, sink: OtlpSink, *, limit_s: float) -> Asked:
    """Waits for a call's spans and puts both sides next to each other."""
    end_s = time.monotonic() + limit_s
    while True:
        spans = {span.name: span for span in sink.spans if span.trace_id == call.trace_id}
        whole = next((spans[name] for name in spans if name.startswith("text_completion")), None)
        if whole is not None and set(_PHASES) <= set(spans):
            break
        assert time.monotonic() < end_s, f"spans of {call.trace_id} lack: {sorted(spans)}"
        time.sleep(0.1)
    told_first_token_s = whole.attributes["antiphon.time_to_first_token"]
    assert isinstance(told_first_token_s, float)
    return Asked(
        first_token_s=call.first_token_s,
        last_token_s=call.last_token_s,
        told_first_token_s=told_first_token_s,
        told_phases_s=sum(spans[name].duration_ns for name in _PHASES) / 1e9,
    )


async def _time(
    stub: inference_pb2_grpc.InferenceServiceStub, request: inference_pb2.GenerateRequest
) -> Timed:
    """Times a call, whose trace begins at the client."""
    trace_id = secrets.token_hex(16)
    metadata = (("traceparent", f"00-{trace_id}-{secrets.token_hex(8)}-01"),)
    begin_s = time.perf_counter()
    first_s, last_s, num_tokens = 0.0, 0.0, 0
    async for event in stub.StreamGenerate(request, metadata=metadata, timeout=LIMIT_S):
        if event.HasField("delta"):
            last_s = time.perf_counter() - begin_s
            first_s = first_s or last_s
        if event.HasField("completed"):
            num_tokens = event.completed.usage.output_tokens
    return Timed(
        trace_id=trace_id, first_token_s=first_s, last_token_s=last_s, num_tokens=num_tokens
    )


def _request(
    draw: random.Random, prompt_tokens: int, output_tokens: int
) -> inference_pb2.GenerateRequest:
    """Returns greedy decoding of so many tokens, behind a prompt that the server has not seen."""
    ids = [draw.randrange(50, 900) for _ in range(prompt_tokens)]
    return inference_pb2.GenerateRequest(
        prompt=Prompt(token_ids=TokenIds(ids=ids)),
        config=GenerationConfig(
            sampling=SamplingParams(temperature=0, repetition_penalty=1),
            stop=StopConditions(max_output_tokens=output_tokens, ignore_eos=True),
        ),
    )
