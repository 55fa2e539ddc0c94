"""An output that goes on, in another server or engine, reads as one that never stopped."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from antiphon.v1.types_pb2 import (
    FinishReason,
    GenerationConfig,
    GenerationStarted,
    OutputOptions,
    PositionLogprobs,
    SamplingParams,
    StopConditions,
    StopMatch,
)

from antiphon_engine.api.errors import AntiphonError, ErrorReason
from antiphon_engine.api.handle import EngineState
from antiphon_engine.api.messages import GenerationRequest
from antiphon_server.endurance import PROGRESS_TOKENS, Attempts, Endurance
from antiphon_server.generation import Event, Generation
from antiphon_server.generation_output import NewTokens
from antiphon_server.offload import Offload
from support.fake_engine import FakeEngine, fixed_ids
from support.fake_request import FakeRequest
from support.generations import Bench, check_events, deltas_of, finish_of, text_of
from support.served_models import TextSide, served_model

SAYINGS = [
    ("plain words, one behind another", []),
    ("naïve 你好 … 🙂🙂 ¡olé!", []),
    ("a 🙂 stop 你好 HERE and no further", ["好 HERE"]),
    ("nearly HAL but then HALT at last", ["HALT"]),
]
POISON = 999
REPORTED = OutputOptions(token_ids=True, top_logprobs=2)


@dataclass(frozen=True, slots=True)
class Told:
    """All that a caller learns of an output."""

    text: str
    token_ids: list[int]
    logprobs: list[PositionLogprobs]
    finish_reason: int
    stop_match: StopMatch
    output_tokens: int
    prompt_tokens: int


def told(generation: Generation, events: Sequence[Event]) -> Told:
    check_events(events, 1)
    deltas, finish = deltas_of(events), finish_of(events)
    assert generation.outputs[0].text == text_of(events)
    return Told(
        text=text_of(events),
        token_ids=[token_id for delta in deltas for token_id in delta.token_ids],
        logprobs=[entry for delta in deltas for entry in delta.logprobs],
        finish_reason=finish.finish_reason,
        stop_match=finish.stop_match,
        output_tokens=generation.usage.output_tokens,
        prompt_tokens=generation.usage.prompt_tokens,
    )


def endurance(*, most: int = 3, wait_s: float = 10.0, was_admitted: bool = False) -> Endurance:
    return Endurance(attempts=Attempts(most=most), wait_s=wait_s, was_admitted=was_admitted)


@pytest.fixture(params=["byte_level", "byte_fallback"])
def any_text(request: pytest.FixtureRequest) -> TextSide:
    found: TextSide = request.getfixturevalue(request.param)
    return found


@pytest.mark.parametrize(("said", "stops"), SAYINGS)
async def test_text_over_any_cut_is_that_of_the_uncut_output(
    said: str, stops: list[str], any_text: TextSide, offload: Offload
) -> None:
    ids = any_text.tokenizer.encode(said, add_special_tokens=False, allow_special_tokens=False)
    config = GenerationConfig(stop=StopConditions(stop_strings=stops), output=REPORTED)
    engine = FakeEngine(script=fixed_ids(*ids))
    bench = Bench.of(served_model(any_text, engine), offload)
    generation, events = await bench.run(config)
    whole, record = told(generation, events), generation.outputs[0]
    assert len(record.logprobs) == len(record.token_ids) > 3

    for cut in range(1, len(record.token_ids)):
        resumed = NewTokens(token_ids=record.token_ids[:cut], logprobs=record.logprobs[:cut])
        taken_up = bench.start(config, resumed=resumed, endurance=endurance())
        events = [event async for event in taken_up.events()]

        assert told(taken_up, events) == whole, cut
        assert taken_up.outputs[0].token_ids == record.token_ids
        assert len(taken_up.outputs[0].logprobs) == len(record.token_ids)
    assert engine.num_running == 0


async def test_stop_string_that_was_kept_whole_ends_the_output_again(
    text: TextSide, offload: Offload
) -> None:
    said = "one two HALT and more"
    ids = text.tokenizer.encode(said, add_special_tokens=False, allow_special_tokens=False)
    config = GenerationConfig(stop=StopConditions(stop_strings=["HALT"]), output=REPORTED)
    engine = FakeEngine(script=fixed_ids(*ids))
    bench = Bench.of(served_model(text, engine), offload)
    generation, events = await bench.run(config)
    logprobs = generation.outputs[0].logprobs
    kept = NewTokens(token_ids=ids[: len(logprobs)], logprobs=logprobs)

    again = bench.start(config, resumed=kept)

    assert told(again, [e async for e in again.events()]) == told(generation, events)
    await engine.requests[-1].wait_ended()


async def die_and_come_back(engine: FakeEngine) -> None:
    engine.set_state(EngineState.DOWN)
    await asyncio.sleep(0)
    engine.set_state(EngineState.STARTING)
    engine.set_state(EngineState.READY)


@pytest.mark.parametrize(("said", "stops"), SAYINGS)
async def test_engine_that_dies_anywhere_is_not_noticed(
    said: str, stops: list[str], any_text: TextSide, offload: Offload
) -> None:
    ids = any_text.tokenizer.encode(said, add_special_tokens=False, allow_special_tokens=False)
    config = GenerationConfig(stop=StopConditions(stop_strings=stops), output=REPORTED)
    calm = Bench.of(served_model(any_text, FakeEngine(script=fixed_ids(*ids))), offload)
    whole = told(*await calm.run(config))

    for num_steps in range(len(whole.token_ids)):
        engine = FakeEngine(script=fixed_ids(*ids))
        bench = Bench.of(served_model(any_text, engine), offload)
        engine.hold()
        generation = bench.start(config, endurance=endurance())
        reading = asyncio.create_task(_collect(generation))
        for _ in range(num_steps):
            engine.step()
            await asyncio.sleep(0)
        await die_and_come_back(engine)
        engine.release()
        events = await asyncio.wait_for(reading, 60)

        assert told(generation, events) == whole, num_steps
        assert sum(isinstance(event, GenerationStarted) for event in events) == 1
        assert len(engine.requests) == 2
        assert engine.requests[1].resumed == whole.token_ids[: len(engine.requests[1].resumed)]
        assert bench.generator.admission.num_running == 0
        assert generation.timings.num_steps >= len(whole.token_ids)


async def _collect(generation: Generation) -> list[Event]:
    return [event async for event in generation.events()]


async def test_request_waits_for_an_engine_that_starts(text: TextSide, offload: Offload) -> None:
    engine = FakeEngine(state=EngineState.STARTING)
    bench = Bench.of(served_model(text, engine), offload)
    generation = bench.start(_budget(5), endurance=endurance())
    reading = asyncio.create_task(_collect(generation))
    await asyncio.sleep(0)
    assert not engine.requests

    engine.set_state(EngineState.READY)

    assert finish_of(await reading).finish_reason == FinishReason.FINISH_REASON_MAX_OUTPUT_TOKENS


async def test_wait_for_an_engine_has_its_limit(text: TextSide, offload: Offload) -> None:
    engine = FakeEngine(state=EngineState.DOWN)
    bench = Bench.of(served_model(text, engine), offload)
    generation = bench.start(_budget(5), endurance=endurance(wait_s=0.01))

    with pytest.raises(AntiphonError) as caught:
        await _collect(generation)

    assert caught.value.reason is ErrorReason.ENGINE_DOWN
    assert bench.generator.admission.num_waiting == 0


async def test_each_outage_has_the_whole_wait(text: TextSide, offload: Offload) -> None:
    engine = FakeEngine()
    engine.hold()
    bench = Bench.of(served_model(text, engine), offload)
    generation = bench.start(_budget(5), endurance=endurance(wait_s=2.0))
    reading = asyncio.create_task(_collect(generation))
    for _ in range(2):
        engine.set_state(EngineState.DOWN)
        await asyncio.sleep(1.1)
        engine.set_state(EngineState.READY)
        await _turns()
    engine.release()

    await asyncio.wait_for(reading, 60)
    assert generation.usage.output_tokens == 5


async def test_deadline_holds_while_there_is_no_engine(text: TextSide, offload: Offload) -> None:
    engine = FakeEngine(state=EngineState.DOWN)
    bench = Bench.of(served_model(text, engine), offload)
    generation = bench.start(_budget(5), deadline_s=0.01, endurance=endurance())

    with pytest.raises(AntiphonError) as caught:
        await _collect(generation)

    assert caught.value.reason is ErrorReason.TIMEOUT


async def test_cancellation_keeps_what_a_dead_engine_brought(
    text: TextSide, offload: Offload
) -> None:
    engine = FakeEngine()
    engine.hold()
    bench = Bench.of(served_model(text, engine), offload)
    generation = bench.start(_budget(50), endurance=endurance())
    reading = asyncio.create_task(_collect(generation))
    engine.step(3)
    await asyncio.sleep(0)
    engine.set_state(EngineState.DOWN)
    generation.cancel()
    events = await reading

    assert finish_of(events).finish_reason == FinishReason.FINISH_REASON_CANCELLED
    assert [*generation.outputs[0].token_ids] == engine.requests[0].outputs[0].token_ids


@pytest.mark.parametrize("tokens_between", [0, 1])
async def test_engine_that_dies_of_it_again_and_again_is_spared(
    tokens_between: int, text: TextSide, offload: Offload
) -> None:
    engine = FakeEngine()
    engine.hold()
    bench = Bench.of(served_model(text, engine), offload)
    generation = bench.start(_budget(100), endurance=endurance(most=3))
    reading = asyncio.create_task(_collect(generation))
    for _ in range(3):
        engine.step(tokens_between)
        await _turns()
        await die_and_come_back(engine)
        await _turns()

    with pytest.raises(AntiphonError) as caught:
        await asyncio.wait_for(reading, 60)

    assert caught.value.reason is ErrorReason.INTERNAL
    assert caught.value.metadata == {"attempts": "3", "limit": "3"}
    assert len(engine.requests) == 3


class PoisonableEngine(FakeEngine):
    """Dies of prompts that end in POISON."""

    def submit(self, request: GenerationRequest) -> FakeRequest:
        stream = super().submit(request)
        if POISON in stream.prompt:
            asyncio.get_running_loop().call_soon(self.die)
        return stream

    def die(self) -> None:
        self.set_state(EngineState.DOWN)
        self.set_state(EngineState.READY)


async def test_what_an_engine_dies_of_takes_no_other_along(
    text: TextSide, offload: Offload
) -> None:
    engine = PoisonableEngine()
    bench = Bench.of(served_model(text, engine), offload)
    config = _budget(2 * PROGRESS_TOKENS)
    prompts = [(1, 2), (3, POISON), (4, 5), (6, 7)]
    generations = [
        bench.start(config, prompt_ids=prompt, endurance=endurance(most=3)) for prompt in prompts
    ]

    told = await asyncio.wait_for(
        asyncio.gather(*map(_collect, generations), return_exceptions=True), 10
    )

    failed = [number for number, events in enumerate(told) if isinstance(events, AntiphonError)]
    assert failed == [1]
    assert sum(POISON in request.prompt for request in engine.requests) == 3
    assert not bench.generator.readiness.probation.locked()


async def test_attempts_that_get_on_are_not_counted(text: TextSide, offload: Offload) -> None:
    engine = FakeEngine()
    engine.hold()
    bench = Bench.of(served_model(text, engine), offload)
    generation = bench.start(_budget(8 * PROGRESS_TOKENS), endurance=endurance(most=2))
    reading = asyncio.create_task(_collect(generation))
    for _ in range(6):
        engine.step(PROGRESS_TOKENS)
        await _turns()
        await die_and_come_back(engine)
        await _turns()
    engine.release()

    await asyncio.wait_for(reading, 60)

    assert generation.usage.output_tokens == 8 * PROGRESS_TOKENS


async def test_request_that_was_admitted_before_is_not_turned_away(
    text: TextSide, offload: Offload
) -> None:
    engine = FakeEngine()
    engine.hold()
    bench = Bench.of(served_model(text, engine), offload)
    config = _budget(5)
    for _ in range(bench.model.limits.max_queued_requests):
        bench.start(config)
    with pytest.raises(AntiphonError) as caught:
        bench.start(config, endurance=endurance())
    assert caught.value.reason is ErrorReason.OVERLOADED

    generation = bench.start(config, endurance=endurance(was_admitted=True))
    engine.release()

    await _collect(generation)
    assert generation.usage.output_tokens == 5


async def test_engine_without_room_is_asked_again_and_that_is_no_attempt(
    text: TextSide, offload: Offload
) -> None:
    engine = FakeEngine()
    engine.hold()
    bench = Bench.of(served_model(text, engine), offload)
    admitted = endurance(most=1, was_admitted=True)
    generation = bench.start(_budget(5), endurance=admitted)
    reading = asyncio.create_task(_collect(generation))
    for num_requests in (1, 2):
        async with asyncio.timeout(60):
            while len(engine.requests) < num_requests:  # noqa: ASYNC110 - it has no event
                await asyncio.sleep(0.01)
        engine.fail_all(AntiphonError(ErrorReason.OVERLOADED, "the engine is full"))
        await _turns()
    engine.release()

    await asyncio.wait_for(reading, 60)
    assert generation.usage.output_tokens == 5
    assert admitted.attempts.num == 1


async def test_held_request_stays_held_in_the_next_engine(text: TextSide, offload: Offload) -> None:
    engine = FakeEngine()
    engine.hold()
    bench = Bench.of(served_model(text, engine), offload)
    generation = bench.start(_budget(5), endurance=endurance())
    reading = asyncio.create_task(_collect(generation))
    engine.step(2)
    await _turns()
    generation.hold()
    await die_and_come_back(engine)
    await _turns()
    assert [request.held for request in engine.requests] == [True, True]

    generation.release()
    engine.release()

    await asyncio.wait_for(reading, 60)
    assert generation.usage.output_tokens == 5


def _budget(num_tokens: int) -> GenerationConfig:
    return GenerationConfig(
        sampling=SamplingParams(seed=5),
        stop=StopConditions(max_output_tokens=num_tokens, ignore_eos=True),
    )


async def _turns() -> None:
    """Lets everything that can run do so."""
    for _ in range(10):
        await asyncio.sleep(0)
