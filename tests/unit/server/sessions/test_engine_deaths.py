"""Turns over an engine that dies: they wait for the next one and go on."""

import asyncio

from antiphon_engine.api.handle import EngineState
from antiphon_server.sessions.limits import SessionLimits
from support.session_bench import (
    BenchSpec,
    SessionBench,
    eventually,
    generate_frame,
    is_kind,
    open_frame,
    session_bench,
    text_of,
    turn_events,
)


async def test_running_and_waiting_turns_go_on_without_a_character_lost(spec: BenchSpec):
    async with session_bench(spec) as bench:
        await bench.create()
        calm = [await bench.run("one", "t1", max_tokens=40), await bench.run("two", "t2")]
    spec.path = spec.path.with_name("other.db")
    async with session_bench(spec) as bench:
        await bench.create()
        bench.engine.hold()
        talk = bench.converse(
            open_frame(), generate_frame("one", "t1", max_tokens=40), generate_frame("two", "t2")
        )
        frames = await talk.until(is_kind("accepted"))
        frames += await talk.until(is_kind("accepted"))
        for num_steps in (0, 7, 20):
            bench.engine.step(num_steps)
            await asyncio.sleep(0.01)
            kill_and_restart(bench)
            await asyncio.sleep(0.01)
        bench.engine.release()
        frames += await talk.rest()

    for turn_id, expected in zip(("t1", "t2"), calm, strict=True):
        events = turn_events(frames, turn_id)
        assert text_of(events) == text_of(expected)
        usage, calm_usage = events[-1].completed.usage, expected[-1].completed.usage
        assert usage.output_tokens == calm_usage.output_tokens
        assert usage.prompt_tokens == calm_usage.prompt_tokens
        assert not any(event.HasField("reset") for event in events)
    assert bench.prompts[-1][: len(bench.prompts[0])] == bench.prompts[0]


def kill_and_restart(bench: SessionBench) -> None:
    bench.engine.set_state(EngineState.DOWN)
    bench.engine.set_state(EngineState.READY)


async def test_turn_that_comes_while_there_is_no_engine_waits_for_it(bench: SessionBench):
    await bench.create()
    bench.engine.set_state(EngineState.STARTING)
    running = asyncio.create_task(bench.run("one", "t1"))
    await asyncio.sleep(0.02)
    assert not running.done()

    bench.engine.set_state(EngineState.READY)

    assert (await running)[-1].HasField("completed")


async def test_turn_fails_where_no_engine_comes(spec: BenchSpec):
    spec.limits = SessionLimits(recovery_wait_s=0.02)
    async with session_bench(spec) as bench:
        await bench.create()
        bench.engine.set_state(EngineState.DOWN)
        events = await bench.run("one", "t1")
        bench.engine.set_state(EngineState.READY)
        after = await bench.run("two", "t2")

    assert events[-1].failed.reason == "ENGINE_DOWN"
    assert after[-1].HasField("completed")


async def test_turn_that_kills_every_engine_is_given_up_and_the_session_goes_on(spec: BenchSpec):
    spec.limits = SessionLimits(max_attempts=2)
    async with session_bench(spec) as bench:
        await bench.create()
        bench.engine.hold()
        running = asyncio.create_task(bench.run("one", "t1"))
        for num_requests in (1, 2):
            await eventually(lambda num=num_requests: len(bench.engine.requests) == num)
            kill_and_restart(bench)
        events = await running
        bench.engine.release()
        after = await bench.run("two", "t2")

    assert events[-1].failed.reason == "INTERNAL"
    assert events[-1].failed.metadata["attempts"] == "2"
    assert len(bench.engine.requests) == 3
    assert after[-1].HasField("completed")
