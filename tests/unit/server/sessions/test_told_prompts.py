"""Turns whose prompts are told of: all that the model reads, whatever happens meanwhile."""

import asyncio
from dataclasses import replace

import pytest
from antiphon.v1.session_pb2 import StartTurn, TurnEvent
from antiphon.v1.types_pb2 import GenerationConfig, OutputOptions, StopConditions

from antiphon_engine.api.handle import EngineState
from support.crashes import copy_left_behind
from support.fake_engine import FakeEngine
from support.fake_prompt_logprobs import foretold
from support.session_bench import (
    KEY,
    BenchSpec,
    SessionBench,
    eventually,
    generate_frame,
    is_kind,
    open_frame,
    session_bench,
    start_turn,
)

CONFIG = GenerationConfig(
    stop=StopConditions(max_output_tokens=12, ignore_eos=True),
    output=OutputOptions(prompt_logprobs=True, prompt_token_ids=True, token_ids=True),
)


@pytest.fixture
def spec(spec: BenchSpec) -> BenchSpec:
    """Prompts take a step for each few tokens."""
    return replace(spec, engine=lambda: FakeEngine(chunk_tokens=5))


def asked(text: str, turn_id: str) -> StartTurn:
    return start_turn(text, turn_id, config=CONFIG)


def check_told(events: list[TurnEvent], prompt: list[int]) -> None:
    """Checks that a turn tells of its whole prompt, once, before its output."""
    kinds = [event.WhichOneof("event") for event in events]
    parts = [event.prompt_part for event in events if event.HasField("prompt_part")]
    assert kinds[: 2 + len(parts)] == ["accepted", "started", *["prompt_part"] * len(parts)]
    assert [token_id for part in parts for token_id in part.token_ids] == prompt
    entries = [entry for part in parts for entry in part.logprobs]
    assert [entry.chosen.token_id for entry in entries[1:]] == prompt[1:]
    assert [entry.chosen.logprob for entry in entries] == [0, *map(foretold, prompt[1:])]
    assert events[-1].HasField("completed")


def output_of(events: list[TurnEvent]) -> list[int]:
    return [token_id for event in events for token_id in event.delta.token_ids]


async def test_a_later_turn_tells_of_all_that_is_before_it(bench: SessionBench):
    await bench.create()
    await bench.run("a first turn, long enough for a block of the cache", "t1")

    events = await bench.follow(asked("two", "t2"))
    again = await bench.follow(asked("two", "t2"))

    assert len(bench.prompts[1]) > len(bench.prompts[0]) > 32
    check_told(events, bench.prompts[1])
    assert events[1].started.cached_prompt_tokens == 0
    check_told(again, bench.prompts[1])
    assert len(bench.prompts) == 2


@pytest.mark.parametrize("num_steps", [1, 3, 9])
async def test_an_engine_that_dies_is_not_noticed(num_steps: int, bench: SessionBench):
    await bench.create()
    bench.engine.hold()
    running = asyncio.create_task(bench.follow(asked("a turn of some length", "t1")))
    await eventually(lambda: len(bench.engine.requests) == 1)
    bench.engine.step(num_steps)
    await asyncio.sleep(0.01)
    bench.engine.set_state(EngineState.DOWN)
    bench.engine.set_state(EngineState.READY)
    bench.engine.release()

    events = await running

    check_told(events, bench.prompts[0])
    assert len(bench.prompts) == 2
    assert len(output_of(events)) == 12


async def test_a_server_that_was_killed_within_the_output_tells_of_the_prompt_again(
    spec: BenchSpec,
):
    limits = replace(spec.limits, checkpoint_tokens=1, checkpoint_interval_s=0.01)
    async with session_bench(replace(spec, limits=limits)) as bench:
        await bench.create()
        bench.engine.hold()
        talk = bench.converse(open_frame(), generate_frame("one", "t1", config=CONFIG))
        await talk.until(is_kind("accepted"))
        await eventually(lambda: len(bench.engine.requests) == 1)
        [first] = bench.engine.requests
        while not first.outputs[0].token_ids:
            bench.engine.step()
        await talk.until(is_kind("delta"))
        async with asyncio.timeout(5):
            while (await bench.store.read_checkpoint(KEY, 1)) is None:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        left = copy_left_behind(spec.path)
    async with session_bench(replace(spec, path=left)) as bench:
        events = await bench.follow(asked("one", "t1"))
        [request] = bench.engine.requests

    assert request.resumed
    check_told(events, request.prompt[: request.prompt_size])
    assert len(output_of(events)) == 12


async def test_what_is_told_from_the_store_has_the_token_ids_alone(spec: BenchSpec):
    async with session_bench(spec) as bench:
        await bench.create()
        first = await bench.follow(asked("one", "t1"))
        prompt = bench.prompts[0]
    async with session_bench(spec) as bench:
        again = await bench.follow(asked("one", "t1"))

    parts = [event.prompt_part for event in again if event.HasField("prompt_part")]
    assert [token_id for part in parts for token_id in part.token_ids] == prompt
    assert not [entry for part in parts for entry in part.logprobs]
    assert output_of(again) == output_of(first)
    assert again[-1] == first[-1]
