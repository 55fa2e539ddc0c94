"""Many requests over one stream."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import grpc
import pytest
from antiphon.v1.inference_pb2 import (
    CancelGeneration,
    GenerateRequest,
    MultiplexGenerateRequest,
    StreamGenerateResponse,
)
from antiphon.v1.types_pb2 import (
    FinishReason,
    GenerationConfig,
    GoAway,
    OutputOptions,
    Prompt,
    SamplingParams,
    StopConditions,
)
from google.protobuf.duration_pb2 import Duration

from antiphon_engine.api.errors import AntiphonError, ErrorReason
from antiphon_server.offload import Offload
from antiphon_server.services.multiplex import MultiplexLimits
from support.fake_engine import FakeEngine
from support.inference_server import InferenceServer, inference_server
from support.multiplexing import Multiplexer
from support.served_models import TextSide, served_model

TRACE = f"00-{7:032x}-{8:016x}-01"


@dataclass
class Setup:
    engine: FakeEngine
    server: InferenceServer

    def open(self, **options: object) -> Multiplexer:
        return Multiplexer(self.server.stub, **options)

    async def until_idle(self) -> None:
        """Waits until neither engine nor front end has anything left."""
        admission = self.server.generator.admission
        await until(
            lambda: (
                not self.engine.num_running + self.engine.num_waiting
                and not admission.num_running + admission.num_waiting
            )
        )


@pytest.fixture
async def setup(text: TextSide, offload: Offload) -> AsyncIterator[Setup]:
    engine = FakeEngine(max_running=8)
    limits = MultiplexLimits(max_running=4)
    model = served_model(text, engine)
    async with inference_server(model, offload, multiplex_limits=limits) as server:
        made = Setup(engine, server)
        yield made
        await made.until_idle()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - polls what another party changes
            await asyncio.sleep(0.002)


def say(text: str = "one two", *, seed: int = 11, num_tokens: int = 20) -> GenerateRequest:
    return GenerateRequest(
        prompt=Prompt(text=text),
        config=GenerationConfig(
            sampling=SamplingParams(seed=seed),
            stop=StopConditions(max_output_tokens=num_tokens, ignore_eos=True),
        ),
    )


def endless() -> GenerateRequest:
    return say(num_tokens=240)


async def stream_text(server: InferenceServer, request: GenerateRequest) -> str:
    responses = [response async for response in server.stub.StreamGenerate(request)]
    assert all(isinstance(response, StreamGenerateResponse) for response in responses)
    return "".join(response.delta.text for response in responses)


async def test_each_request_is_answered_as_if_it_were_streamed_alone(setup: Setup) -> None:
    requests = {tag: say(f"prompt {tag}", seed=tag) for tag in range(12)}
    requests[3].num_outputs = 2
    requests[4].config.output.CopyFrom(OutputOptions(token_ids=True, prompt_token_ids=True))
    caller = setup.open()

    for tag, request in requests.items():
        await caller.start(tag, request)
    status = await caller.finish()

    assert status is grpc.StatusCode.OK
    for tag, request in requests.items():
        told = caller.told[tag]
        alone = [r async for r in setup.server.stub.StreamGenerate(request)]
        assert told.num_ends == 1
        assert told.kinds[0] == "started"
        assert told.kinds[-1] == "completed"
        assert told.events[0].started.seed == tag
        for index in range(request.num_outputs or 1):
            assert "".join(
                e.delta.text for e in told.events if e.delta.output_index == index
            ) == "".join(e.delta.text for e in alone if e.delta.output_index == index)
        ids = [i for e in told.events for i in e.delta.token_ids]
        assert ids == [i for e in alone for i in e.delta.token_ids]
        assert told.kinds.count("prompt_part") == (tag == 4)
        assert told.events[-1].completed.usage.output_tokens == 20 * (request.num_outputs or 1)


async def test_requests_that_run_together_share_frames(text: TextSide, offload: Offload) -> None:
    engine = FakeEngine(max_running=200)
    model = served_model(text, engine)
    async with inference_server(model, offload) as server:
        caller = Multiplexer(server.stub)
        caller.read_on()
        engine.hold()
        for tag in range(60):
            await caller.start(tag, say(seed=tag, num_tokens=5))
        await until(lambda: engine.num_waiting == 60)
        for _ in range(5):
            engine.step()
            num_events = caller.num_events
            await caller.until(lambda seen, before=num_events: seen.num_events > before)
        status = await caller.finish()

    assert status is grpc.StatusCode.OK
    assert all(caller.told[tag].kinds[-1] == "completed" for tag in range(60))
    assert caller.num_frames <= 6


async def test_stream_without_instructions_ends_well(setup: Setup) -> None:
    caller = setup.open()

    assert await caller.finish() is grpc.StatusCode.OK
    assert caller.num_frames == 0


async def test_cancelled_request_finishes_as_cancelled_and_the_others_go_on(setup: Setup) -> None:
    caller = setup.open()
    caller.read_on()
    setup.engine.hold()
    await caller.start(1, endless())
    await caller.start(2, say())
    await until(lambda: setup.engine.num_waiting == 2)
    setup.engine.step(3)
    await caller.until(lambda seen: "delta" in seen.told[1].kinds)

    await caller.cancel(1)
    await caller.cancel(77)
    await caller.until_ended(1)
    setup.engine.release()
    status = await caller.finish()

    assert status is grpc.StatusCode.OK
    assert caller.told[1].finish_reasons() == [FinishReason.FINISH_REASON_CANCELLED]
    assert caller.told[1].kinds[-1] == "completed"
    assert caller.told[2].text == await stream_text(setup.server, say())
    assert 77 not in caller.told


async def test_request_cancelled_before_it_runs_finishes_as_cancelled(setup: Setup) -> None:
    caller = setup.open()
    caller.read_on()
    setup.engine.hold()
    for tag in range(6):
        request = endless()
        request.num_outputs = 2
        await caller.start(tag, request)
    await until(lambda: setup.engine.num_waiting == 4)

    await caller.cancel(5)
    await caller.until_ended(5)
    for tag in range(5):
        await caller.cancel(tag)

    assert await caller.finish() is grpc.StatusCode.OK
    cancelled = FinishReason.FINISH_REASON_CANCELLED
    assert all(caller.told[tag].finish_reasons() == [cancelled] * 2 for tag in range(6))
    assert all(caller.told[tag].num_ends == 1 for tag in range(6))
    assert len(setup.engine.requests) <= 5


async def test_tag_of_a_running_request_ends_the_stream_and_frees_all(setup: Setup) -> None:
    caller = setup.open()
    await caller.start(1, endless())
    await caller.start(2, endless())
    await caller.start(1, say())

    status = await caller.end()

    assert status is grpc.StatusCode.INVALID_ARGUMENT
    await setup.until_idle()
    assert all(request.closed for request in setup.engine.requests)


async def test_tag_is_free_again_once_its_request_has_ended(setup: Setup) -> None:
    caller = setup.open()
    caller.read_on()
    await caller.start(1, say(seed=1))
    await caller.until_ended(1)

    await caller.start(1, say(seed=2))
    status = await caller.finish()

    assert status is grpc.StatusCode.OK
    assert caller.told[1].num_ends == 2
    texts = [await stream_text(setup.server, say(seed=seed)) for seed in (1, 2)]
    assert caller.told[1].text == "".join(texts)


@pytest.mark.parametrize(
    ("frame", "reason", "field"),
    [
        (MultiplexGenerateRequest(), "INVALID_FIELD", "instruction"),
        (
            MultiplexGenerateRequest(generate=GenerateRequest()),
            "INVALID_FIELD",
            "generate.prompt",
        ),
        (
            MultiplexGenerateRequest(generate=GenerateRequest(model="models/no")),
            "MODEL_NOT_FOUND",
            "",
        ),
        (
            MultiplexGenerateRequest(
                generate=GenerateRequest(config={"sampling": {"temperature": -1}})
            ),
            "INVALID_FIELD",
            "generate.config.sampling.temperature",
        ),
        (MultiplexGenerateRequest(generate=say(), timeout=Duration()), "INVALID_FIELD", "timeout"),
        (
            MultiplexGenerateRequest(generate=say(), cache_scope="x" * 257),
            "INVALID_FIELD",
            "cache_scope",
        ),
        (
            MultiplexGenerateRequest(cancel=CancelGeneration(), cache_scope="x"),
            "INVALID_FIELD",
            "cache_scope",
        ),
    ],
    ids=lambda value: str(value)[:30],
)
async def test_refused_request_fails_alone(
    frame: MultiplexGenerateRequest, reason: str, field: str, setup: Setup
) -> None:
    frame.tag = 9
    caller = setup.open()
    await caller.start(1, say())
    await caller.send(frame)
    await caller.start(2, say())

    status = await caller.finish()

    assert status is grpc.StatusCode.OK
    assert caller.told[9].reasons == [reason]
    named = [violation.field for violation in caller.told[9].failures[0].field_violations]
    assert named == ([field] if field else [])
    assert not caller.told[9].events
    assert caller.told[1].text == caller.told[2].text == await stream_text(setup.server, say())


async def test_unknown_field_is_refused_under_its_tag(setup: Setup) -> None:
    caller = setup.open()
    frame = MultiplexGenerateRequest.FromString(
        MultiplexGenerateRequest(tag=5, generate=say()).SerializeToString() + b"\xf8\x3e\x01"
    )
    await caller.send(frame)

    assert await caller.finish() is grpc.StatusCode.OK
    assert caller.told[5].reasons == ["INVALID_FIELD"]


@pytest.mark.parametrize("phase", ["waiting for a place", "waiting for the engine", "running"])
async def test_timeout_fails_its_request_alone(phase: str, setup: Setup) -> None:
    caller = setup.open()
    caller.read_on()
    setup.engine.hold()
    if phase == "waiting for a place":
        for tag in range(4):
            await caller.start(tag, endless())
        await until(lambda: setup.engine.num_waiting == 4)
    await caller.start(7, endless(), timeout=Duration(nanos=200_000_000))
    if phase == "running":
        await until(lambda: setup.engine.num_waiting == 1)
        setup.engine.step()

    await caller.until_ended(7)
    await caller.start(8, say())
    setup.engine.release()

    assert await caller.finish() is grpc.StatusCode.OK
    assert caller.told[7].reasons == ["TIMEOUT"]
    assert ("started" in caller.told[7].kinds) == (phase == "running")
    assert caller.told[8].num_ends == 1


async def test_terms_of_a_request_reach_the_engine(setup: Setup) -> None:
    caller = setup.open(metadata=[("traceparent", f"00-{5:032x}-{6:016x}-00")])
    await caller.start(1, say())
    await caller.start(2, say(), cache_scope="user 7", traceparent=TRACE, tracestate="a=1")
    await caller.start(3, say(), traceparent="not one", tracestate="a=1")

    assert await caller.finish() is grpc.StatusCode.OK
    plain, own, broken = (request.request for request in setup.engine.requests)
    assert (plain.scope.cache_scope, own.scope.cache_scope) == ("", "user 7")
    assert (plain.traceparent, plain.tracestate) == (f"00-{5:032x}-{6:016x}-00", "")
    assert (own.traceparent, own.tracestate) == (TRACE, "a=1")
    assert broken.traceparent == plain.traceparent


async def test_prefixes_are_shared_within_a_cache_scope_only(setup: Setup) -> None:
    long = "a rather long prompt that fills some blocks of the cache, twice over " * 2
    caller = setup.open()
    caller.read_on()
    for tag, cache_scope in enumerate(["x", "y", "x"]):
        await caller.start(tag, say(long), cache_scope=cache_scope)
        await caller.until_ended(tag)

    assert await caller.finish() is grpc.StatusCode.OK
    first, other, again = (
        caller.told[tag].events[0].started.cached_prompt_tokens for tag in range(3)
    )
    assert (first, other) == (0, 0)
    assert again > 0


async def test_gone_caller_frees_all_its_requests(setup: Setup) -> None:
    caller = setup.open()
    caller.read_on()
    for tag in range(7):
        await caller.start(tag, endless())
    await caller.until(lambda seen: len(seen.told) > 0)

    caller.call.cancel()

    await setup.until_idle()


async def test_more_requests_than_may_run_wait_their_turn_and_all_are_answered(
    setup: Setup,
) -> None:
    caller = setup.open()
    caller.read_on()
    most = 0
    for tag in range(150):
        await caller.start(tag, say(seed=tag, num_tokens=3))
        most = max(most, setup.engine.num_running + setup.engine.num_waiting)

    assert await caller.finish() is grpc.StatusCode.OK
    assert all(caller.told[tag].num_ends == 1 for tag in range(150))
    assert all(caller.told[tag].kinds[-1] == "completed" for tag in range(150))
    assert most <= 4


async def test_engine_failure_fails_each_request_and_not_the_stream(setup: Setup) -> None:
    caller = setup.open()
    caller.read_on()
    setup.engine.hold()
    for tag in range(3):
        await caller.start(tag, endless())
    await until(lambda: setup.engine.num_waiting == 3)

    setup.engine.fail_all(AntiphonError(ErrorReason.ENGINE_DOWN, "it died", retry_delay_s=1.0))
    await caller.until_ended(0, 1, 2)
    setup.engine.release()
    await caller.start(3, say())

    assert await caller.finish() is grpc.StatusCode.OK
    assert all(caller.told[tag].reasons == ["ENGINE_DOWN"] for tag in range(3))
    assert caller.told[0].failures[0].retry_delay.seconds == 1
    assert caller.told[3].text == await stream_text(setup.server, say())


async def test_stream_that_is_sent_away_finishes_what_runs_and_takes_nothing_new(
    setup: Setup,
) -> None:
    caller = setup.open()
    caller.read_on()
    setup.engine.hold()
    await caller.start(1, say())
    await until(lambda: setup.engine.num_waiting == 1)

    end = AntiphonError(ErrorReason.DRAINING, "over", retry_delay_s=1.0)
    go_away = GoAway(reason=GoAway.REASON_DRAINING, time_left=Duration(seconds=9))
    setup.server.long_calls.send_away(go_away, end)
    await caller.until(lambda seen: bool(seen.go_aways))
    await caller.start(2, say())
    await caller.until_ended(2)
    setup.engine.release()
    status = await caller.end()

    assert status is grpc.StatusCode.UNAVAILABLE
    assert caller.go_aways == [go_away]
    assert caller.told[2].reasons == ["DRAINING"]
    assert caller.told[1].text == await stream_text(setup.server, say())
    assert caller.told[1].kinds[-1] == "completed"


async def test_stream_that_is_cut_off_fails_what_runs_under_its_tags(setup: Setup) -> None:
    caller = setup.open()
    caller.read_on()
    setup.engine.hold()
    for tag in range(6):
        await caller.start(tag, endless())
    await until(lambda: setup.engine.num_waiting == 4)

    setup.server.long_calls.cut_off(AntiphonError(ErrorReason.DRAINING, "over"))
    status = await caller.end()

    assert status is grpc.StatusCode.UNAVAILABLE
    assert all(caller.told[tag].reasons == ["DRAINING"] for tag in range(6))
