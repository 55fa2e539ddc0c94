"""Turns over servers that are killed or stopped: the next one takes up what was accepted."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest
from antiphon.v1.session_pb2 import HistoryPoint, Session, StartTurn, Turn, TurnCursor, TurnEvent
from antiphon.v1.types_pb2 import (
    FINISH_REASON_CANCELLED,
    GenerationConfig,
    OutputOptions,
    StopConditions,
)
from google.protobuf.duration_pb2 import Duration
from google.protobuf.empty_pb2 import Empty

from antiphon_server.endurance import PROGRESS_TOKENS
from antiphon_server.sessions.event_log import ReaderSpec
from antiphon_server.sessions.limits import SessionLimits
from antiphon_server.sessions.records import TurnOrder, TurnRow
from support.crashes import copy_left_behind
from support.fake_engine import FakeEngine
from support.session_bench import (
    KEY,
    BenchSpec,
    SessionBench,
    append_frame,
    events_of,
    eventually,
    generate_frame,
    is_kind,
    open_frame,
    session_bench,
    start_turn,
    text_of,
)

EAGER = SessionLimits(checkpoint_tokens=1, checkpoint_interval_s=0.001)
SIZE = 40


@pytest.fixture
def spec(spec: BenchSpec) -> BenchSpec:
    spec.limits = EAGER
    return spec


async def follow(bench: SessionBench, turn_id: str) -> list[TurnEvent]:
    """`follow_all` of one."""
    return (await follow_all(bench, turn_id))[0]


async def follow_all(bench: SessionBench, *turn_ids: str) -> list[list[TurnEvent]]:
    """Reads turns that are there, to their ends; an engine that is held steps from then on."""
    async with bench.registry.use(KEY) as session:
        logs = {turn.turn_id: turn.log for turn in session.live_turns}
        bench.engine.release()
        return await asyncio.gather(*(events_of(logs[name]) for name in turn_ids))


async def run_calmly(spec: BenchSpec, *turns: tuple[str, int]) -> list[list[TurnEvent]]:
    """What turns t1, t2, … bring where nothing happens."""
    async with session_bench(replace(spec, path=spec.path.with_name("calm.db"))) as bench:
        await bench.create()
        return [
            await bench.run(text, f"t{number}", max_tokens=size)
            for number, (text, size) in enumerate(turns, start=1)
        ]


async def step_and_keep(bench: SessionBench, num_tokens: int, *, num_before: int = 0) -> None:
    """Lets the running turn say so much, and waits until all of its output is durable."""
    bench.engine.step(num_tokens)
    ((_, running), *_) = await bench.store.list_unfinished()
    num_kept = 0
    async with asyncio.timeout(60):
        while num_kept < num_before + num_tokens:
            await asyncio.sleep(0.005)
            kept = await bench.store.read_checkpoint(KEY, running.position)
            num_kept = 0 if kept is None else len(kept.tokens.output_ids)


def held_engine() -> FakeEngine:
    """An engine that makes no step by itself, from its first moment."""
    engine = FakeEngine()
    engine.hold()
    return engine


async def start_all(bench: SessionBench, *frames: object) -> None:
    """Sends frames, and waits until all turns are accepted."""
    talk = bench.converse(open_frame(), *frames)
    for _ in frames:
        await talk.until(is_kind("accepted"))
    await eventually(lambda: len(bench.engine.requests) == 1)


def same_output(events: Sequence[TurnEvent], expected: Sequence[TurnEvent]) -> None:
    assert text_of(events) == text_of(expected)
    told, calm = events[-1].completed, expected[-1].completed
    assert told.finish_reason == calm.finish_reason
    assert told.usage.output_tokens == calm.usage.output_tokens
    assert told.usage.prompt_tokens == calm.usage.prompt_tokens


@pytest.mark.parametrize("num_tokens", [0, 1, 17, SIZE - 1])
async def test_running_and_waiting_turns_are_taken_up_in_order(spec: BenchSpec, num_tokens: int):
    calm = await run_calmly(spec, ("one", SIZE), ("two", 5))
    async with session_bench(spec) as bench:
        await bench.create()
        bench.engine.hold()
        await start_all(
            bench, generate_frame("one", "t1", max_tokens=SIZE), generate_frame("two", "t2")
        )
        if num_tokens:
            await step_and_keep(bench, num_tokens)
        epoch = bench.store.epoch
        left = copy_left_behind(spec.path)
    async with session_bench(replace(spec, path=left, engine=held_engine)) as bench:
        told = await follow_all(bench, "t1", "t2")
        again = await bench.run("one", "t1", max_tokens=SIZE)
        turns = [await bench.turn(turn_id) for turn_id in ("t1", "t2")]
        session = await bench.session()
        unfinished = await bench.store.list_unfinished()

    for events, expected in zip(told, calm, strict=True):
        same_output(events, expected)
        assert {event.epoch for event in events} == {epoch + 1}
    assert bench.engine.requests[0].resumed == bench.outputs[0][:num_tokens]
    assert len(bench.engine.requests) == 2
    assert text_of(again) == text_of(calm[0])
    assert [turn.state for turn in turns] == [Turn.STATE_COMPLETED] * 2
    assert [turn.epoch for turn in turns] == [epoch + 1] * 2
    assert (session.num_turns, session.head_turn) == (2, KEY.turn_name("t2"))
    assert not unfinished


async def test_completed_turn_is_never_run_again(spec: BenchSpec):
    async with session_bench(spec) as bench:
        await bench.create()
        first = await bench.run("one", "t1")
        left = copy_left_behind(spec.path)
    async with session_bench(replace(spec, path=left)) as bench:
        again = await bench.run("one", "t1")

    assert not bench.engine.requests
    assert text_of(again) == text_of(first)
    assert again[-1].completed.etag == first[-1].completed.etag


async def test_reader_of_the_epoch_before_starts_over(spec: BenchSpec):
    async with session_bench(spec) as bench:
        await bench.create()
        bench.engine.hold()
        await start_all(bench, generate_frame("one", "t1", max_tokens=SIZE))
        await step_and_keep(bench, 10)
        cursor = TurnCursor(turn_id="t1", epoch=bench.store.epoch, sequence=5)
        left = copy_left_behind(spec.path)
    async with (
        session_bench(replace(spec, path=left)) as bench,
        bench.registry.use(KEY) as session,
    ):
        (turn,) = session.live_turns
        reader = turn.log.open_reader(asyncio.Event(), ReaderSpec(cursor=cursor))
        events = [reader.read(), reader.read()]
        reader.close()

    assert [event.WhichOneof("event") for event in events if event] == ["reset", "accepted"]


async def test_reports_go_on_over_the_crash(spec: BenchSpec):
    config = GenerationConfig(
        stop=StopConditions(max_output_tokens=SIZE),
        output=OutputOptions(token_ids=True, top_logprobs=2, prompt_token_ids=True),
    )
    start = start_turn("one", "t1", config=config)
    async with session_bench(replace(spec, path=spec.path.with_name("calm.db"))) as bench:
        await bench.create()
        await bench.follow(start)
        calm = await bench.turn("t1")
    async with session_bench(spec) as bench:
        await bench.create()
        bench.engine.hold()
        await start_all(bench, generate_frame("one", "t1", config=config))
        await step_and_keep(bench, 9)
        left = copy_left_behind(spec.path)
    async with session_bench(replace(spec, path=left)) as bench:
        events = await follow(bench, "t1")
        turn = await bench.turn("t1")

    assert turn.output == calm.output
    assert turn.config == calm.config
    prompt = [token_id for event in events for token_id in event.prompt_part.token_ids]
    assert prompt == bench.prompts[0][: len(prompt)]


async def test_appended_items_and_conditions_hold_over_the_crash(spec: BenchSpec):
    async with session_bench(spec) as bench:
        await bench.create()
        await bench.run("zero", "t0")
        bench.engine.hold()
        talk = bench.converse(
            open_frame(),
            generate_frame("one", "t1", max_tokens=SIZE),
            append_frame("note", "a1"),
            generate_frame("", "t2"),
            generate_frame("no", "t3", expected_head=HistoryPoint(start=Empty())),
        )
        for _ in range(4):
            await talk.until(is_kind("accepted"))
        left = copy_left_behind(spec.path)
    async with session_bench(replace(spec, path=left, engine=held_engine)) as bench:
        told = await follow_all(bench, "t1", "a1", "t2", "t3")
        session = await bench.session()

    assert [events[-1].WhichOneof("event") for events in told] == [*["completed"] * 3, "failed"]
    assert told[3][-1].failed.reason == "STALE_HEAD"
    assert session.num_turns == 4
    assert len(bench.prompts[1]) > len(bench.prompts[0]) + SIZE


async def test_rewinding_turn_is_taken_up_where_it_went_back_to(spec: BenchSpec):
    async with session_bench(spec) as bench:
        await bench.create()
        await bench.run("one", "t1")
        await bench.run("two", "t2")
        bench.engine.hold()
        point = HistoryPoint(turn=KEY.turn_name("t1"))
        frame = generate_frame("other", "t3", rewind_to=point, max_tokens=SIZE)
        talk = bench.converse(open_frame(), frame)
        await talk.until(is_kind("accepted"))
        await eventually(lambda: len(bench.engine.requests) == 3)
        await step_and_keep(bench, 7)
        left = copy_left_behind(spec.path)
    async with session_bench(replace(spec, path=left)) as recovered:
        events = await follow(recovered, "t3")
        states = [(await recovered.turn(f"t{number}")).state for number in (1, 2, 3)]

    assert events[-1].HasField("completed")
    assert recovered.prompts[0][:-7] == bench.prompts[2]
    assert states == [Turn.STATE_COMPLETED, Turn.STATE_SUPERSEDED, Turn.STATE_COMPLETED]


async def test_timeout_runs_on_while_there_is_no_server(spec: BenchSpec):
    timeout = Duration(seconds=60)
    async with session_bench(spec) as bench:
        await bench.create()
        bench.engine.hold()
        await start_all(bench, generate_frame("one", "t1", max_tokens=SIZE, timeout=timeout))
        await step_and_keep(bench, 9)
        left = copy_left_behind(spec.path)
    spec.clock.pass_s(61)
    async with session_bench(replace(spec, path=left)) as bench:
        await eventually(lambda: not bench.registry.num_live_turns)
        turn, session = await bench.turn("t1"), await bench.session()

    assert turn.failure.reason == "TIMEOUT"
    assert session.num_turns == 0
    assert turn.output.text
    assert turn.usage.output_tokens == 9


async def test_turn_that_never_gets_on_is_given_up(spec: BenchSpec):
    spec.limits = replace(EAGER, max_attempts=3)
    path = spec.path
    for number_of_crashes in range(3):
        async with session_bench(replace(spec, path=path, engine=held_engine)) as bench:
            if not number_of_crashes:
                await bench.create()
                await start_all(bench, generate_frame("one", "t1", max_tokens=SIZE))
            await eventually(lambda engine=bench.engine: len(engine.requests) == 1)
            path = copy_left_behind(path)
    async with session_bench(replace(spec, path=path)) as bench:
        await eventually(lambda: not bench.registry.num_live_turns)
        turn, after = await bench.turn("t1"), await bench.run("two", "t2")

    assert turn.state == Turn.STATE_FAILED
    assert turn.failure.reason == "INTERNAL"
    assert dict(turn.failure.metadata)["attempts"] == "3"
    assert after[-1].HasField("completed")
    assert len(bench.engine.requests) == 1


async def test_turn_that_gets_on_survives_any_number_of_crashes(spec: BenchSpec):
    spec.limits = replace(EAGER, max_attempts=2)
    size = 6 * PROGRESS_TOKENS
    (calm,) = await run_calmly(spec, ("one", size))
    path, num_tokens = spec.path, 0
    for number_of_crashes in range(5):
        async with session_bench(replace(spec, path=path, engine=held_engine)) as bench:
            if not number_of_crashes:
                await bench.create()
                await start_all(bench, generate_frame("one", "t1", max_tokens=size))
            await eventually(lambda engine=bench.engine: len(engine.requests) == 1)
            await step_and_keep(bench, PROGRESS_TOKENS + 1, num_before=num_tokens)
            num_tokens += PROGRESS_TOKENS + 1
            path = copy_left_behind(path)
    async with session_bench(replace(spec, path=path)) as bench:
        same_output(await follow(bench, "t1"), calm)


async def test_server_that_is_stopped_leaves_its_turns_to_the_next(spec: BenchSpec):
    spec.limits = SessionLimits(max_attempts=1, checkpoint_interval_s=60)
    calm = await run_calmly(spec, ("one", SIZE), ("two", 5))
    async with session_bench(spec) as bench:
        await bench.create()
        bench.engine.hold()
        await start_all(
            bench, generate_frame("one", "t1", max_tokens=SIZE), generate_frame("two", "t2")
        )
        bench.engine.step(11)
        await asyncio.sleep(0.02)
    async with session_bench(spec) as bench:
        told = await asyncio.gather(follow(bench, "t1"), follow(bench, "t2"))

    for events, expected in zip(told, calm, strict=True):
        same_output(events, expected)
    assert bench.engine.requests[0].resumed == bench.outputs[0][:11]


async def test_cancelled_turn_keeps_what_was_generated_before_the_crash(spec: BenchSpec):
    async with session_bench(spec) as bench:
        await bench.create()
        bench.engine.hold()
        await start_all(bench, generate_frame("one", "t1", max_tokens=SIZE))
        await step_and_keep(bench, 9)
        left = copy_left_behind(spec.path)
    async with session_bench(replace(spec, path=left, engine=held_engine)) as bench:
        async with bench.registry.use(KEY) as session:
            await session.cancel_turn("t1", discards=False)
            bench.engine.release()
            await eventually(lambda: not bench.registry.num_live_turns)
        turn = await bench.turn("t1")

    assert turn.state == Turn.STATE_COMPLETED
    assert turn.usage.output_tokens == 9
    assert turn.output.text


@pytest.mark.parametrize("comes_back", [False, True])
async def test_turn_that_ends_with_its_stream_waits_for_its_caller(
    spec: BenchSpec, comes_back: bool
):
    spec.limits = replace(EAGER, reconnect_grace_s=0.05)
    async with session_bench(spec) as bench:
        await bench.create()
        bench.engine.hold()
        frame = generate_frame(
            "one", "t1", max_tokens=SIZE, on_disconnect=StartTurn.ON_DISCONNECT_CANCEL
        )
        await start_all(bench, frame)
        await step_and_keep(bench, 9)
        left = copy_left_behind(spec.path)
    async with session_bench(replace(spec, path=left, engine=held_engine)) as bench:
        if comes_back:
            talk = bench.converse(open_frame())
            await talk.until(is_kind("accepted"))
        await asyncio.sleep(0.1)
        bench.engine.release()
        await eventually(lambda: not bench.registry.num_live_turns)
        turn = await bench.turn("t1")

    assert turn.state == Turn.STATE_COMPLETED
    assert turn.usage.output_tokens == (SIZE if comes_back else 9)


async def test_interrupting_turn_interrupts_over_the_crash(spec: BenchSpec):
    async with session_bench(spec) as bench:
        await bench.create()
        bench.engine.hold()
        await start_all(bench, generate_frame("one", "t1", max_tokens=SIZE))
        await step_and_keep(bench, 9)
        # The crash comes between the new turn's acceptance and the end of the one before.
        order = start_turn("two", "t2", if_busy=StartTurn.IF_BUSY_INTERRUPT)
        row = TurnRow(
            position=2,
            turn_id="t2",
            generates=True,
            fingerprint=b"f",
            turn=Turn(name=KEY.turn_name("t2"), state=Turn.STATE_QUEUED, input=order.items),
            order=TurnOrder(request=order, accepted=Session(defaults=order.config)),
        )
        await bench.store.accept_turn(KEY, row, max_stored_bytes=1 << 30)
        left = copy_left_behind(spec.path)
    async with session_bench(replace(spec, path=left)) as bench:
        second = await follow(bench, "t2")
        first, session = await bench.turn("t1"), await bench.session()

    assert first.output.finish_reason == FINISH_REASON_CANCELLED
    assert first.usage.output_tokens == 9
    assert second[-1].HasField("completed")
    assert session.num_turns == 2
    assert bench.prompts[1][: len(bench.prompts[0])] == bench.prompts[0]
