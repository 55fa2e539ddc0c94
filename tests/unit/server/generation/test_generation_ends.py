"""Every stream ends exactly once, with a reason and with usage."""

import asyncio
from collections.abc import AsyncIterator

import msgspec
import pytest
from antiphon.v1.inference_pb2 import GenerationCompleted, OutputFinished
from antiphon.v1.types_pb2 import (
    Delta,
    FinishReason,
    GenerationConfig,
    GenerationStarted,
    OutputOptions,
    SamplingParams,
    StopConditions,
)
from google.protobuf.duration_pb2 import Duration

from antiphon_engine.api.errors import AntiphonError, ErrorReason
from antiphon_engine.api.handle import EngineState
from antiphon_engine.api.messages import GenerationRequest
from antiphon_server.offload import Offload
from support.fake_engine import FACTS, FakeEngine, fixed_ids
from support.generations import Bench, check_events, finish_of, text_of
from support.served_models import TextSide, served_model

SAID = "one two three four five"


def ids(text: TextSide, said: str) -> list[int]:
    return text.tokenizer.encode(said, add_special_tokens=False, allow_special_tokens=False)


async def collect(stream: AsyncIterator[object], into: list[object]) -> None:
    async for event in stream:
        into.append(event)


@pytest.mark.parametrize("num_outputs", [1, 3])
@pytest.mark.parametrize(
    ("stop", "reason"),
    [
        (StopConditions(), "STOP"),
        (StopConditions(stop_strings=["four"]), "STOP_SEQUENCE"),
        (StopConditions(stop_token_ids=[0]), "STOP_SEQUENCE"),
        (StopConditions(max_output_tokens=3), "MAX_OUTPUT_TOKENS"),
        (StopConditions(ignore_eos=True), "CONTEXT_FULL"),
    ],
)
async def test_each_output_finishes_once_and_usage_comes_once(
    stop: StopConditions, reason: str, num_outputs: int, text: TextSide, offload: Offload
) -> None:
    said = ids(text, SAID) + ([0] if stop.stop_token_ids else [])
    engine = FakeEngine(script=fixed_ids(*said))
    bench = Bench.of(served_model(text, engine), offload)

    generation, events = await bench.run(GenerationConfig(stop=stop), num_outputs=num_outputs)

    completed = events[-1]
    assert isinstance(completed, GenerationCompleted)
    for index in range(num_outputs):
        finish = finish_of(events, index)
        assert FinishReason.Name(finish.finish_reason) == f"FINISH_REASON_{reason}"
        assert generation.outputs[index].finish_reason == finish.finish_reason
    assert completed.usage.prompt_tokens == 3
    assert completed.usage.output_tokens == sum(len(o.token_ids) for o in generation.outputs)
    assert completed.timings.num_steps == engine.requests[0].num_steps
    assert bench.generator.admission.num_running == bench.generator.admission.num_waiting == 0
    assert engine.num_running == engine.num_waiting == 0


async def test_outputs_of_different_length_end_each_in_its_time(
    text: TextSide, offload: Offload
) -> None:
    said = ids(text, SAID)

    def script(_: GenerationRequest, output_index: int) -> list[int]:
        return said[: 2 * output_index + 1]

    bench = Bench.of(served_model(text, FakeEngine(script=script)), offload)

    generation, events = await bench.run(num_outputs=3)

    order = [e.output_index for e in events if isinstance(e, OutputFinished)]
    assert order == [0, 1, 2]
    assert [len(output.token_ids) for output in generation.outputs] == [2, 4, 6]
    assert SAID.startswith(text_of(events, 1))


async def test_start_tells_prompt_cache_and_the_seed(text: TextSide, offload: Offload) -> None:
    bench = Bench.of(served_model(text, FakeEngine()), offload)
    config = GenerationConfig(
        sampling=SamplingParams(seed=0), stop=StopConditions(max_output_tokens=1)
    )
    prompt_ids = list(range(70))

    first, *_ = [e async for e in bench.start(config, prompt_ids=prompt_ids).events()]
    second, *_ = [e async for e in bench.start(prompt_ids=prompt_ids).events()]

    assert first == GenerationStarted(prompt_tokens=70, cached_prompt_tokens=0, seed=0)
    assert second == GenerationStarted(prompt_tokens=70, cached_prompt_tokens=64, seed=7)


async def test_cancelled_generation_keeps_what_there_is(text: TextSide, offload: Offload) -> None:
    engine = FakeEngine()
    bench = Bench.of(served_model(text, engine), offload)
    generation = bench.start(GenerationConfig(output=OutputOptions(token_ids=True)), num_outputs=3)

    events: list[object] = []
    async for event in generation.events():
        events.append(event)
        if isinstance(event, Delta):
            generation.cancel()
            generation.cancel()

    check_events(events, 3)
    for index in range(3):
        assert finish_of(events, index).finish_reason == FinishReason.FINISH_REASON_CANCELLED
    assert engine.requests[0].cancel_asked
    assert generation.usage.output_tokens == sum(
        len(e.token_ids) for e in events if isinstance(e, Delta)
    )


async def test_generation_cancelled_in_the_queue_completes(
    text: TextSide, offload: Offload
) -> None:
    engine = FakeEngine()
    engine.hold()
    bench = Bench.of(served_model(text, engine), offload)
    generation = bench.start()

    generation.cancel()
    events = [event async for event in generation.events()]

    check_events(events, 1)
    assert generation.usage.output_tokens == 0
    assert bench.generator.admission.num_waiting == 0


def stuck_bench(text: TextSide, offload: Offload) -> tuple[Bench, FakeEngine]:
    """One whose engine neither steps nor hears."""
    engine = FakeEngine(deaf=True)
    engine.hold()
    return Bench.of(served_model(text, engine), offload), engine


@pytest.mark.parametrize("reads_first", [False, True])
async def test_cancellation_does_not_wait_for_an_engine_that_is_stuck(
    reads_first: bool, text: TextSide, offload: Offload
) -> None:
    bench, engine = stuck_bench(text, offload)
    generation = bench.start()
    events: list[object] = []
    reading = asyncio.ensure_future(collect(generation.events(), events))
    if reads_first:
        await asyncio.sleep(0.01)

    generation.cancel()
    await reading

    check_events(events, 1)
    assert finish_of(events).finish_reason == FinishReason.FINISH_REASON_CANCELLED
    assert not engine.requests[0].ended
    assert bench.generator.admission.num_waiting == 0


async def test_deadline_does_not_wait_for_an_engine_that_is_stuck(
    text: TextSide, offload: Offload
) -> None:
    bench, _ = stuck_bench(text, offload)
    generation = bench.start(deadline_s=0.03)

    with pytest.raises(AntiphonError) as caught:
        await collect(generation.events(), [])

    assert caught.value.reason is ErrorReason.TIMEOUT
    assert "still waited" in caught.value.message


async def test_close_ends_a_wait_that_has_begun(text: TextSide, offload: Offload) -> None:
    bench, _ = stuck_bench(text, offload)
    generation = bench.start()
    events: list[object] = []
    reading = asyncio.ensure_future(collect(generation.events(), events))
    await asyncio.sleep(0.01)

    generation.close()
    await reading

    assert events == []


async def test_request_counts_as_waiting_until_it_has_begun(
    text: TextSide, offload: Offload
) -> None:
    engine = FakeEngine()
    engine.hold()
    bench = Bench.of(served_model(text, engine), offload)
    admission = bench.generator.admission
    generation = bench.start()
    before = (admission.num_waiting, admission.num_running)

    engine.step()
    await anext(generation.events())

    assert before == (1, 0)
    assert (admission.num_waiting, admission.num_running) == (0, 1)
    generation.close()


async def test_timings_are_spans_in_their_order(text: TextSide, offload: Offload) -> None:
    engine = FakeEngine(step_interval_s=0.005)
    bench = Bench.of(served_model(text, engine), offload)

    _, events = await bench.run(GenerationConfig(stop=StopConditions(max_output_tokens=4)))

    timings = events[-1].timings  # type: ignore[union-attr]
    queue, prefill, decode, first = (
        span.ToNanoseconds()
        for span in (timings.queue, timings.prefill, timings.decode, timings.time_to_first_token)
    )
    assert min(queue, prefill, decode) > 0
    assert queue + prefill == first
    assert timings.num_steps == 4


async def test_cancel_after_the_end_changes_nothing(text: TextSide, offload: Offload) -> None:
    bench = Bench.of(served_model(text, FakeEngine(script=fixed_ids(*ids(text, SAID)))), offload)
    generation, events = await bench.run()

    generation.cancel()
    generation.close()

    assert finish_of(events).finish_reason == FinishReason.FINISH_REASON_STOP
    assert generation.outputs[0].finish_reason == FinishReason.FINISH_REASON_STOP


async def test_time_limit_ends_with_what_there_is(text: TextSide, offload: Offload) -> None:
    engine = FakeEngine(step_interval_s=0.02)
    bench = Bench.of(served_model(text, engine), offload)
    config = GenerationConfig(stop=StopConditions(time_limit=Duration(nanos=150_000_000)))

    generation, events = await bench.run(config)

    assert finish_of(events).finish_reason == FinishReason.FINISH_REASON_TIME_LIMIT
    assert 1 <= generation.usage.output_tokens < 100
    assert engine.num_running == 0


async def test_deadline_in_the_queue_fails_and_leaves_the_queue(
    text: TextSide, offload: Offload
) -> None:
    engine = FakeEngine(max_running=1)
    bench = Bench.of(served_model(text, engine), offload)
    engine.hold()
    running = bench.start()
    engine.step(1)
    late = [bench.start(deadline_s=0.05) for _ in range(5)]
    patient = bench.start(GenerationConfig(stop=StopConditions(max_output_tokens=1)))

    for generation in late:
        with pytest.raises(AntiphonError) as caught:
            [event async for event in generation.events()]
        assert caught.value.reason is ErrorReason.TIMEOUT
    await engine.requests[5].wait_ended()

    assert engine.num_waiting == 1
    assert bench.generator.admission.num_waiting == 2  # Nobody has read of the first one's start.
    assert engine.num_prefilled_tokens == 3
    running.close()
    engine.release()
    check_events([event async for event in patient.events()], 1)
    assert not any(request.outputs[0].token_ids for request in engine.requests[1:6])


async def test_deadline_while_running_fails(text: TextSide, offload: Offload) -> None:
    engine = FakeEngine(step_interval_s=0.01)
    bench = Bench.of(served_model(text, engine), offload)
    generation = bench.start(deadline_s=0.1)

    with pytest.raises(AntiphonError) as caught:
        [event async for event in generation.events()]

    assert caught.value.reason is ErrorReason.TIMEOUT
    assert engine.requests[0].closed
    await engine.requests[0].wait_ended()
    assert engine.num_running == 0


async def test_deadline_passes_although_nobody_reads(text: TextSide, offload: Offload) -> None:
    engine = FakeEngine(step_interval_s=0.001)
    bench = Bench.of(served_model(text, engine), offload)
    generation = bench.start(
        GenerationConfig(stop=StopConditions(ignore_eos=True)), deadline_s=0.03
    )
    events = generation.events()
    await anext(events)

    await engine.requests[0].wait_ended()

    assert engine.requests[0].cancel_asked
    with pytest.raises(AntiphonError):
        [event async for event in events]


async def test_engine_failure_ends_the_stream_as_that(text: TextSide, offload: Offload) -> None:
    engine = FakeEngine()
    bench = Bench.of(served_model(text, engine), offload)
    generation = bench.start()

    stream = generation.events()
    events: list[object] = [await anext(stream) for _ in range(3)]
    engine.set_state(EngineState.DOWN)
    with pytest.raises(AntiphonError) as caught:
        await collect(stream, events)

    assert caught.value.reason is ErrorReason.ENGINE_DOWN
    assert not any(isinstance(e, OutputFinished | GenerationCompleted) for e in events)
    assert bench.generator.admission.num_running == 0


async def test_request_that_never_fits_fails_as_that(text: TextSide, offload: Offload) -> None:
    small = msgspec.structs.replace(FACTS, kv_cache_tokens=64)
    bench = Bench.of(served_model(text, FakeEngine(facts=small)), offload)
    generation = bench.start()

    with pytest.raises(AntiphonError) as caught:
        [event async for event in generation.events()]

    assert caught.value.reason is ErrorReason.NEVER_FITS


@pytest.mark.parametrize("num_read", [0, 1, 3])
async def test_closing_frees_everything_at_once(
    num_read: int, text: TextSide, offload: Offload
) -> None:
    engine = FakeEngine()
    bench = Bench.of(served_model(text, engine), offload)
    generation = bench.start(num_outputs=3)
    events = generation.events()
    for _ in range(num_read):
        await anext(events)

    generation.close()
    rest = [event async for event in events]

    assert not any(isinstance(event, GenerationCompleted) for event in rest)
    assert engine.requests[0].closed
    await engine.requests[0].wait_ended()
    assert engine.num_running == engine.num_waiting == 0
    assert bench.generator.admission.num_running == bench.generator.admission.num_waiting == 0


async def test_reader_that_goes_away_frees_everything(text: TextSide, offload: Offload) -> None:
    engine = FakeEngine()
    bench = Bench.of(served_model(text, engine), offload)
    events = bench.start().events()
    await anext(events)

    await events.aclose()

    assert engine.requests[0].closed
    assert bench.generator.admission.num_running == 0
