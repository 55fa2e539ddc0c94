"""Streams that break and come again: each event once, from exactly where the caller was."""

import asyncio
import dataclasses
import gc
import weakref
from collections.abc import Sequence

import pytest
from antiphon.v1.session_pb2 import ConverseResponse, StartTurn, Turn, TurnCursor, TurnEvent

from antiphon_server.sessions.limits import SessionLimits
from support.session_bench import (
    KEY,
    BenchSpec,
    SessionBench,
    Talk,
    append_frame,
    check_turn_events,
    ends,
    eventually,
    generate_frame,
    is_kind,
    open_frame,
    session_bench,
    text_of,
)

NUM_TOKENS = 30


def cursor_of(event: TurnEvent) -> TurnCursor:
    return TurnCursor(turn_id=event.turn_id, epoch=event.epoch, sequence=event.sequence)


def events_of(frames: Sequence[ConverseResponse]) -> list[TurnEvent]:
    return [frame.turn_event for frame in frames if frame.HasField("turn_event")]


async def stepped_to_delta(bench: SessionBench, talk: Talk) -> list[ConverseResponse]:
    """What is told up to the next delta; a token may show no text by itself."""
    reading = asyncio.create_task(talk.until(is_kind("delta")))
    while not reading.done():
        bench.engine.step(1)
        await asyncio.sleep(0.005)
    return await reading


async def broken_in_the_middle(bench: SessionBench, num_deltas: int = 4) -> list[TurnEvent]:
    """What a stream told of the turn t1 before it broke, a token an event."""
    await bench.create()
    bench.engine.hold()
    talk = bench.converse(open_frame(), generate_frame("one", "t1", max_tokens=NUM_TOKENS))
    frames = await talk.until(is_kind("accepted"))
    await eventually(lambda: bool(bench.engine.requests))
    for _ in range(num_deltas):
        frames += await stepped_to_delta(bench, talk)
    await talk.break_off()
    return events_of(frames)


async def resumed(bench: SessionBench, *cursors: TurnCursor) -> list[TurnEvent]:
    """All that a stream tells that goes on from there."""
    talk = bench.converse(open_frame(resume=cursors))
    return events_of(await talk.rest())


async def whole_turn(bench: SessionBench) -> list[TurnEvent]:
    """The turn t1, run while nobody reads."""
    await bench.create()
    await bench.run("one", "t1", max_tokens=NUM_TOKENS)
    return await resumed(bench, TurnCursor(turn_id="t1"))


@pytest.mark.parametrize("num_seen", range(1, 7))
async def test_a_broken_stream_goes_on_behind_any_event(bench: SessionBench, num_seen: int):
    told = await broken_in_the_middle(bench)
    seen = told[:num_seen]
    bench.engine.release()

    rest = await resumed(bench, cursor_of(seen[-1]))

    check_turn_events([*seen, *rest])
    assert text_of([*seen, *rest]) == (await bench.turn("t1")).output.text


async def test_a_turn_that_ended_meanwhile_is_told_from_the_cursor(bench: SessionBench):
    seen = await broken_in_the_middle(bench)
    bench.engine.release()
    await eventually(lambda: bench.registry.num_live_turns == 0)

    rest = await resumed(bench, cursor_of(seen[-2]))

    check_turn_events([*seen[:-1], *rest])
    assert text_of([*seen[:-1], *rest]) == (await bench.turn("t1")).output.text


@pytest.mark.parametrize(("seen", "kinds"), [(1, ["completed"]), (0, [])])
async def test_a_cursor_at_the_end_gets_what_is_left(
    bench: SessionBench, seen: int, kinds: list[str]
):
    events = await whole_turn(bench)

    rest = await resumed(bench, cursor_of(events[-1 - seen]))

    assert [event.WhichOneof("event") for event in rest] == kinds


@pytest.mark.parametrize(
    "cursor",
    [
        TurnCursor(turn_id="t1", epoch=77, sequence=3),
        TurnCursor(turn_id="t1", epoch=1, sequence=1000),
    ],
)
async def test_a_cursor_of_another_count_is_reset(bench: SessionBench, cursor: TurnCursor):
    events = await whole_turn(bench)

    again = await resumed(bench, cursor)

    assert again[0].HasField("reset")
    assert (again[0].turn_id, again[0].epoch) == ("t1", events[0].epoch)
    check_turn_events(again[1:])
    assert text_of(again) == text_of(events)


async def test_what_the_log_had_is_made_again_from_the_store(spec: BenchSpec):
    limits = dataclasses.replace(spec.limits, max_ended_log_bytes=0)
    async with session_bench(dataclasses.replace(spec, limits=limits)) as bench:
        seen = await broken_in_the_middle(bench)
        bench.engine.release()
        await eventually(lambda: bench.registry.num_live_turns == 0)

        from_start = await resumed(bench, cursor_of(seen[0]))
        inside = await resumed(bench, cursor_of(seen[-1]))
        text = (await bench.turn("t1")).output.text

    check_turn_events([seen[0], *from_start])
    assert text_of(from_start) == text
    assert inside[0].HasField("reset")
    check_turn_events(inside[1:])
    assert text_of(inside) == text


async def test_a_cursor_outlives_the_server(spec: BenchSpec):
    async with session_bench(spec) as bench:
        events = await whole_turn(bench)
    async with session_bench(spec) as bench:
        at_end = await resumed(bench, cursor_of(events[-1]))
        before_end = await resumed(bench, cursor_of(events[-2]))

    assert at_end == []
    assert before_end == [events[-1]]


async def test_logs_of_ended_turns_go_some_time_after_they_were_read(spec: BenchSpec):
    limits = dataclasses.replace(spec.limits, log_grace_s=0.02)
    async with session_bench(dataclasses.replace(spec, limits=limits)) as bench:
        logs = bench.registry.surroundings.ended_logs
        await bench.create()
        await bench.run("unread by a driving stream", "t0")
        unread_bytes = logs.size_bytes
        talk = bench.converse(open_frame(), generate_frame("one", "t1"))
        await talk.rest()

        await eventually(lambda: logs.size_bytes == unread_bytes)
        await bench.registry.delete(KEY, "")

        assert unread_bytes > 0
        assert logs.size_bytes == 0


async def test_a_kept_log_keeps_nothing_else_of_its_turn(bench: SessionBench):
    await bench.create()
    bench.engine.hold()
    talk = bench.converse(open_frame(), generate_frame("one", "t1"))
    await talk.until(is_kind("accepted"))
    async with bench.registry.use(KEY) as session:
        turn = weakref.ref(session.live_turns[0])
    bench.engine.release()
    await talk.rest()
    await bench.run("another", "t2")
    gc.collect()

    assert bench.registry.surroundings.ended_logs.find(KEY, "t1") is not None
    assert turn() is None


async def test_several_turns_are_told_of_from_where_each_stands(bench: SessionBench):
    seen = await broken_in_the_middle(bench)
    first = bench.converse(open_frame(), append_frame("x", "a1"))
    await first.until(is_kind("delta"))
    await first.until(is_kind("accepted"))
    await first.break_off()
    bench.engine.release()
    await eventually(lambda: bench.registry.num_live_turns == 0)

    events = await resumed(bench, TurnCursor(turn_id="a1"), cursor_of(seen[2]))

    told = {name: [e for e in events if e.turn_id == name] for name in ("a1", "t1")}
    check_turn_events(told["a1"])
    check_turn_events([*seen[:3], *told["t1"]])


async def until_away(talk: Talk) -> ConverseResponse:
    return (await talk.until(is_kind("go_away")))[-1]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"attachment_id": "mine"}, {"attachment_id": "mine"}),
        ({}, {"take_over": True}),
        ({"attachment_id": "theirs"}, {"attachment_id": "mine", "take_over": True}),
        ({"attachment_id": "mine"}, {"attachment_id": "mine", "watch_only": True}),
    ],
)
async def test_an_older_stream_gives_way_and_its_turn_goes_on(
    bench: SessionBench, first: dict[str, object], second: dict[str, object]
):
    await bench.create()
    bench.engine.hold()
    generate = generate_frame("one", "t1", on_disconnect=StartTurn.ON_DISCONNECT_CANCEL)
    old = bench.converse(open_frame(**first), generate)
    await old.until(is_kind("accepted"))
    await asyncio.sleep(0.05)

    new = bench.converse(open_frame(**second))
    await new.next()
    away = await until_away(old)
    error = await old.error()
    bench.engine.release()
    frames = await new.rest()

    assert away.go_away.reason == away.go_away.REASON_TAKEN_OVER
    assert error.reason == "TAKEN_OVER"
    events = [event for event in events_of(frames) if event.turn_id == "t1"]
    if not second.get("watch_only"):
        check_turn_events(events)
        assert events[-1].completed.usage.output_tokens == 5


@pytest.mark.parametrize("second", [{}, {"attachment_id": "other"}, {"attachment_id": ""}], ids=str)
async def test_a_stream_that_has_no_right_to_is_refused(
    bench: SessionBench, second: dict[str, object]
):
    await bench.create()
    first = bench.converse(open_frame(attachment_id="mine"))
    await first.next()

    error = await bench.converse(open_frame(**second)).error()

    assert error.reason == "SESSION_ATTACHED"
    assert await first.rest() == []


@pytest.mark.parametrize("comes_back", [True, False])
async def test_a_turn_that_ends_with_its_stream_waits_a_while_for_another(
    spec: BenchSpec, comes_back: bool
):
    limits = dataclasses.replace(spec.limits, reconnect_grace_s=0.05)
    async with session_bench(dataclasses.replace(spec, limits=limits)) as bench:
        await bench.create()
        bench.engine.hold()
        generate = generate_frame(
            "one", "t1", max_tokens=20, on_disconnect=StartTurn.ON_DISCONNECT_CANCEL
        )
        talk = bench.converse(open_frame(), generate)
        await talk.until(is_kind("accepted"))
        await eventually(lambda: bool(bench.engine.requests))
        await stepped_to_delta(bench, talk)
        await talk.break_off()
        num_held = bench.engine.num_held
        again = bench.converse(open_frame())
        if comes_back:
            await again.next()
        await asyncio.sleep(0.15)
        bench.engine.release()
        await eventually(lambda: bench.registry.num_live_turns == 0)
        turn = await bench.turn("t1")

    assert num_held == 1
    assert turn.state == Turn.STATE_COMPLETED
    assert (turn.usage.output_tokens == 20) is comes_back


async def test_a_watching_stream_is_told_of_everything_and_drives_nothing(bench: SessionBench):
    await bench.create()
    driver = bench.converse(open_frame(), generate_frame("one", "t1"))
    await driver.until(is_kind("accepted"))
    watcher = bench.converse(open_frame(watch_only=True))

    await watcher.next()
    driver.send(generate_frame("two", "t2"))
    frames = await watcher.until(ends("t2"))
    await bench.run("three", "t3")
    frames += await watcher.until(ends("t3"))
    watcher.send(generate_frame("four", "t4"), append_frame("five", "t5"))
    frames += await watcher.until(is_kind("rejected"))
    frames += await watcher.rest()
    await driver.rest()

    for turn_id in ("t2", "t3"):
        check_turn_events([e for e in events_of(frames) if e.turn_id == turn_id])
    rejected = [frame.rejected for frame in frames if frame.HasField("rejected")]
    assert [(each.turn_id, each.failure.reason) for each in rejected] == [
        ("t4", "INVALID_FIELD"),
        ("t5", "INVALID_FIELD"),
    ]
    assert rejected[0].failure.field_violations[0].field == "generate"


async def test_watching_streams_are_told_of_changes_and_bounded(spec: BenchSpec):
    limits: SessionLimits = dataclasses.replace(spec.limits, max_watchers=2)
    async with session_bench(dataclasses.replace(spec, limits=limits)) as bench:
        await bench.create()
        watchers = [bench.converse(open_frame(watch_only=True)) for _ in range(2)]
        for watcher in watchers:
            await watcher.next()

        error = await bench.converse(open_frame(watch_only=True)).error()
        await bench.instruct("changed")
        told = [await watcher.next() for watcher in watchers]

        assert error.reason == "OVERLOADED"
        assert {frame.changed.session.instructions for frame in told} == {"changed"}
        await watchers[0].rest()
        again = bench.converse(open_frame(watch_only=True))
        assert (await again.next()).HasField("opened")
