"""Generate and StreamGenerate over a real connection."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace

import grpc
import msgspec
import pytest
from antiphon.v1.inference_pb2 import (
    GenerateRequest,
    GenerateResponse,
    StreamGenerateResponse,
)
from antiphon.v1.types_pb2 import (
    ChatMessage,
    Conversation,
    FinishReason,
    GenerationConfig,
    Item,
    OutputOptions,
    Prompt,
    Role,
    SamplingParams,
    StopConditions,
    TokenIds,
)

from antiphon_engine.api.handle import EngineState
from antiphon_server.generation import Generation
from antiphon_server.generation_spec import GenerationSpec
from antiphon_server.generator import Generator
from antiphon_server.offload import Offload
from support.fake_engine import FACTS, FakeEngine, fixed_ids
from support.generations import check_events, finish_of, text_of
from support.inference_server import InferenceServer, inference_server
from support.served_models import LIMITS, TextSide, served_model


@dataclass
class Setup:
    engine: FakeEngine
    server: InferenceServer


@pytest.fixture
async def setup(text: TextSide, offload: Offload) -> AsyncIterator[Setup]:
    engine = FakeEngine(max_running=4)
    async with inference_server(served_model(text, engine), offload) as server:
        yield Setup(engine, server)


def say_on(num_tokens: int = 20, **output: bool | int) -> GenerateRequest:
    return GenerateRequest(
        prompt=Prompt(text="one two three"),
        config=GenerationConfig(
            sampling=SamplingParams(seed=11),
            stop=StopConditions(max_output_tokens=num_tokens),
            output=OutputOptions(**output),  # type: ignore[arg-type]
        ),
    )


def endless() -> GenerateRequest:
    request = say_on(200)
    request.config.stop.ignore_eos = True
    return request


async def read_stream(server: InferenceServer, request: GenerateRequest) -> list[object]:
    """The events of a stream, unpacked; prompt parts are left out."""
    events = []
    async for response in server.stub.StreamGenerate(request):
        assert isinstance(response, StreamGenerateResponse)
        kind = response.WhichOneof("event")
        assert kind is not None
        if kind != "prompt_part":
            events.append(getattr(response, kind))
    return events


async def wait_until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - polls what another party changes
            await asyncio.sleep(0.002)


@pytest.mark.parametrize("num_outputs", [1, 3])
async def test_stream_joins_to_the_unary_answer(num_outputs: int, setup: Setup) -> None:
    request = say_on(30, token_ids=True, top_logprobs=2)
    request.num_outputs = num_outputs
    request.config.stop.stop_strings.append("q")

    answer = await setup.server.stub.Generate(request)
    events = await read_stream(setup.server, request)

    check_events(events, num_outputs)
    assert len(answer.outputs) == num_outputs
    for index, output in enumerate(answer.outputs):
        deltas = [e for e in events if getattr(e, "output_index", None) == index]
        assert output.text == text_of(events, index)
        assert output.token_ids == [t for d in deltas for t in getattr(d, "token_ids", ())]
        assert output.logprobs == [p for d in deltas for p in getattr(d, "logprobs", ())]
        assert output.finish_reason == finish_of(events, index).finish_reason
        assert output.stop_match == finish_of(events, index).stop_match
    usage = answer.usage
    assert usage.output_tokens == sum(len(output.token_ids) for output in answer.outputs)
    assert events[-1].usage.output_tokens == usage.output_tokens  # type: ignore[attr-defined]
    assert usage.prompt_tokens == events[0].prompt_tokens  # type: ignore[attr-defined]
    assert answer.timings.num_steps > 0


async def test_conversation_is_answered(setup: Setup) -> None:
    item = Item(message=ChatMessage(role=Role.ROLE_USER, text="hello"))
    request = say_on(5)
    request.prompt.CopyFrom(Prompt(conversation=Conversation(items=[item])))

    answer = await setup.server.stub.Generate(request)

    assert answer.outputs[0].finish_reason == FinishReason.FINISH_REASON_MAX_OUTPUT_TOKENS
    assert answer.usage.prompt_tokens > 5


async def test_prompt_ids_are_reported_on_request(setup: Setup, text: TextSide) -> None:
    request = say_on(1, prompt_token_ids=True)
    token_ids = text.tokenizer.encode(
        "one two three", add_special_tokens=True, allow_special_tokens=False
    )

    answer = await setup.server.stub.Generate(request)
    responses = [response async for response in setup.server.stub.StreamGenerate(request)]

    kinds = [response.WhichOneof("event") for response in responses]
    assert kinds[:2] == ["started", "prompt_part"]
    assert kinds.count("prompt_part") == 1
    assert answer.prompt_token_ids == responses[1].prompt_part.token_ids == token_ids


@pytest.mark.parametrize(
    ("change", "code", "reason"),
    [
        (lambda r: r.prompt.Clear(), "INVALID_ARGUMENT", "INVALID_FIELD"),
        (lambda r: setattr(r, "model", "models/no"), "NOT_FOUND", "MODEL_NOT_FOUND"),
        (lambda r: setattr(r, "num_outputs", 9), "INVALID_ARGUMENT", "INVALID_FIELD"),
        (
            lambda r: setattr(r.config.sampling, "top_p", 0),
            "INVALID_ARGUMENT",
            "INVALID_FIELD",
        ),
        (
            lambda r: r.prompt.token_ids.ids.extend([1] * 256),
            "INVALID_ARGUMENT",
            "CONTEXT_LENGTH_EXCEEDED",
        ),
        (
            lambda r: setattr(r.config, "adapter", "models/tiny/adapters/a"),
            "UNIMPLEMENTED",
            "UNSUPPORTED_FEATURE",
        ),
        (
            lambda r: r.prompt.conversation.tools.add(name="now"),
            "UNIMPLEMENTED",
            "UNSUPPORTED_FEATURE",
        ),
        (
            lambda r: r.config.constraint.choice.options.append(""),
            "INVALID_ARGUMENT",
            "INVALID_FIELD",
        ),
    ],
)
async def test_both_methods_refuse_alike_and_the_engine_sees_nothing(
    change: Callable[[GenerateRequest], object], code: str, reason: str, setup: Setup
) -> None:
    request = say_on(1)
    change(request)

    for failed in await setup.server.failures_of(request):
        assert (failed.code().name, setup.server.reason_of(failed)) == (code, reason)
    assert setup.engine.requests == []


async def test_prompt_of_the_whole_context_but_one_gets_one_token(setup: Setup) -> None:
    request = GenerateRequest(prompt=Prompt(token_ids=TokenIds(ids=[1] * 255)))

    answer = await setup.server.stub.Generate(request)

    assert answer.usage.output_tokens == 1
    assert answer.outputs[0].finish_reason == FinishReason.FINISH_REASON_CONTEXT_FULL


@pytest.mark.parametrize("phase", ["queued", "running"])
@pytest.mark.parametrize("method", ["Generate", "StreamGenerate"])
async def test_cancelled_call_leaves_the_engine(method: str, phase: str, setup: Setup) -> None:
    if phase == "queued":
        setup.engine.hold()
    call = getattr(setup.server.stub, method)(endless())
    reading = asyncio.ensure_future(setup.server.read_all(call))
    await wait_until(lambda: len(setup.engine.requests) == 1)
    (request,) = setup.engine.requests
    if phase == "running":
        await wait_until(lambda: len(request.outputs[0].token_ids) > 0)

    call.cancel()

    await wait_until(lambda: request.ended and request.closed)
    await wait_until(lambda: setup.server.generator.admission.num_waiting == 0)
    num_tokens = len(request.outputs[0].token_ids)
    await asyncio.sleep(0.02)
    assert len(request.outputs[0].token_ids) == num_tokens
    assert setup.engine.num_running == setup.engine.num_waiting == 0
    assert setup.server.generator.admission.num_running == 0
    with pytest.raises(asyncio.CancelledError):
        await reading


async def test_call_cancelled_while_its_reader_has_stopped_leaves_the_engine(
    text: TextSide, offload: Offload
) -> None:
    facts = msgspec.structs.replace(FACTS, context_tokens=200_000, kv_cache_tokens=200_000)
    engine = FakeEngine(facts=facts)
    async with inference_server(served_model(text, engine), offload) as server:
        request = endless()
        request.config.stop.max_output_tokens = 150_000
        request.config.output.top_logprobs = 20
        call = server.stub.StreamGenerate(request)
        await call.read()
        await wait_until(lambda: len(engine.requests[0].outputs[0].token_ids) > 5_000)

        call.cancel()

        await wait_until(lambda: engine.requests[0].ended and engine.requests[0].closed)
        assert server.generator.admission.num_running == 0


@pytest.mark.parametrize("method", ["Generate", "StreamGenerate"])
async def test_client_that_closes_its_channel_leaves_the_engine(method: str, setup: Setup) -> None:
    call = getattr(setup.server.stub, method)(endless())
    reading = asyncio.ensure_future(setup.server.read_all(call))
    await wait_until(lambda: len(setup.engine.requests) == 1)

    await setup.server.channel.close()

    (request,) = setup.engine.requests
    await wait_until(lambda: request.ended and request.closed)
    assert setup.server.generator.admission.num_running == 0
    with pytest.raises((asyncio.CancelledError, grpc.aio.AioRpcError)):
        await reading


@pytest.mark.parametrize("method", ["Generate", "StreamGenerate"])
async def test_deadline_in_the_queue_ends_the_call_and_computes_nothing(
    method: str, setup: Setup
) -> None:
    setup.engine.hold()
    call = getattr(setup.server.stub, method)(endless(), timeout=0.1)

    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await setup.server.read_all(call)

    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    await wait_until(lambda: setup.engine.num_waiting == 0)
    setup.engine.release()
    await asyncio.sleep(0.02)
    assert setup.engine.num_prefilled_tokens == 0


async def test_full_queue_is_refused_with_a_delay(text: TextSide, offload: Offload) -> None:
    limits = replace(LIMITS, max_queued_requests=2)
    engine = FakeEngine()
    engine.hold()
    async with inference_server(served_model(text, engine, limits=limits), offload) as server:
        waiting = [asyncio.ensure_future(read_stream(server, say_on(2))) for _ in range(2)]
        await wait_until(lambda: engine.num_waiting == 2)

        failures = await server.failures_of(say_on(2))
        engine.release()
        answered = await asyncio.gather(*waiting)

        for failed in failures:
            assert failed.code() is grpc.StatusCode.UNAVAILABLE
            assert server.reason_of(failed) == "OVERLOADED"
            assert server.retry_delay_of(failed) > 0
        for events in answered:
            check_events(events, 1)


async def test_engine_that_dies_fails_what_runs_and_what_comes(setup: Setup) -> None:
    running = asyncio.ensure_future(setup.server.stub.Generate(endless()))
    await wait_until(lambda: setup.engine.num_running == 1)

    setup.engine.set_state(EngineState.DOWN)

    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await running
    for failed in [caught.value, *await setup.server.failures_of(say_on(1))]:
        assert failed.code() is grpc.StatusCode.UNAVAILABLE
        assert setup.server.reason_of(failed) == "ENGINE_DOWN"
    setup.engine.set_state(EngineState.READY)
    answer = await setup.server.stub.Generate(say_on(1))
    assert isinstance(answer, GenerateResponse)


async def test_answer_beyond_a_message_is_refused_early_and_streams_whole(
    text: TextSide, offload: Offload
) -> None:
    facts = msgspec.structs.replace(
        FACTS, vocabulary_size=2**31, context_tokens=700_000, kv_cache_tokens=700_000
    )
    engine = FakeEngine(facts=facts, script=fixed_ids(5))
    async with inference_server(served_model(text, engine), offload) as server:
        request = say_on(200, top_logprobs=20, prompt_token_ids=True)
        request.config.stop.ignore_eos = True
        # The report of the prompt alone is a little below the bound.
        prompt_ids = [2**31 - 1] * 628_000
        request.prompt.CopyFrom(Prompt(token_ids=TokenIds(ids=prompt_ids)))

        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await server.stub.Generate(request)
        num_tokens = len(engine.requests[0].outputs[0].token_ids)
        responses = [response async for response in server.stub.StreamGenerate(request)]

    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert server.reason_of(caught.value) == "RESPONSE_TOO_LARGE"
    assert num_tokens < 200
    parts = [response.prompt_part for response in responses]
    assert sum(len(part.token_ids) for part in parts) == len(prompt_ids)
    assert sum(len(response.delta.logprobs) for response in responses) == 200
    assert max(response.ByteSize() for response in responses) <= 1 << 20


async def test_overload_is_refused_before_any_work_on_the_prompt(setup: Setup) -> None:
    setup.engine.set_state(EngineState.DOWN)
    request = say_on(1)
    request.prompt.token_ids.ids.append(FACTS.vocabulary_size)

    for failed in await setup.server.failures_of(request):
        assert setup.server.reason_of(failed) == "ENGINE_DOWN"


class SpecRecorder(Generator):
    """Keeps what it is asked to start."""

    def start(self, spec: GenerationSpec) -> Generation:
        self.spec = spec
        return super().start(spec)


@pytest.mark.parametrize("method", ["Generate", "StreamGenerate"])
async def test_deadline_and_trace_of_the_call_go_with_the_request(
    method: str, text: TextSide, offload: Offload
) -> None:
    model = served_model(text, FakeEngine())
    recorder = SpecRecorder(model, offload=offload)
    trace = f"00-{7:032x}-{8:016x}-01"
    async with inference_server(model, offload, generator=recorder) as server:
        method_stub = getattr(server.stub, method)

        await server.read_all(method_stub(say_on(1)))
        without = recorder.spec
        await server.read_all(method_stub(say_on(1), timeout=50, metadata=[("traceparent", trace)]))

    assert (without.deadline_ns, without.traceparent) == (None, "")
    assert recorder.spec.traceparent == trace
    assert recorder.spec.deadline_ns is not None
    left_s = (recorder.spec.deadline_ns - recorder.spec.received_ns) / 1e9
    assert 40 < left_s < 60


async def test_many_streams_at_once_are_each_as_if_alone(setup: Setup) -> None:
    def request(seed: int) -> GenerateRequest:
        asked = say_on(12, token_ids=True)
        asked.config.sampling.seed = seed
        return asked

    alone = [(await setup.server.stub.Generate(request(seed))).outputs[0] for seed in range(24)]
    together = await asyncio.gather(
        *(read_stream(setup.server, request(seed)) for seed in range(24))
    )

    for output, events in zip(alone, together, strict=True):
        check_events(events, 1)
        assert output.text == text_of(events)
    assert setup.engine.num_running == setup.engine.num_waiting == 0
