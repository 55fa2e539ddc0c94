"""Readers that acknowledge, fall behind, or stay away: bounded on the way out, nothing lost."""

import asyncio
import dataclasses

import pytest
from antiphon.v1.session_pb2 import ConverseRequest, ConverseResponse, StartTurn, Turn, TurnCursor
from antiphon.v1.types_pb2 import OutputOptions

from antiphon_server.services.acknowledgements import MAX_UNACKED_EVENTS, Acknowledgements
from antiphon_server.services.converse_stream import MAX_WAITING_FRAMES
from support.fake_engine import FakeEngine
from support.session_bench import (
    KEY,
    BenchSpec,
    SessionBench,
    append_frame,
    check_turn_events,
    ends,
    eventually,
    generate_frame,
    is_kind,
    open_frame,
    session_bench,
    start_turn,
    text_of,
    turn_events,
)


def ack_frame(cursor: TurnCursor, frame_id: str = "ack") -> ConverseRequest:
    return ConverseRequest(frame_id=frame_id, ack=cursor)


def ack_of(frame: ConverseResponse) -> ConverseRequest:
    """Acknowledges an event."""
    event = frame.turn_event
    return ack_frame(TurnCursor(turn_id=event.turn_id, epoch=event.epoch, sequence=event.sequence))


def slow_engine(spec: BenchSpec, **limits: float) -> BenchSpec:
    """A bench with other limits, whose engine says a token in two milliseconds."""
    return dataclasses.replace(
        spec,
        limits=dataclasses.replace(spec.limits, **limits),
        engine=lambda: FakeEngine(step_interval_s=0.002),
    )


async def ended(bench: SessionBench) -> None:
    await eventually(lambda: bench.registry.num_live_turns == 0)


async def test_a_stream_holds_back_past_what_may_be_unacknowledged(bench: SessionBench):
    await bench.create()
    talk = bench.converse(
        open_frame(max_unacked_events=2), generate_frame("one", "t1", max_tokens=50)
    )

    frames = [await talk.next() for _ in range(3)]
    await ended(bench)
    assert await talk.is_silent()
    talk.send(ack_of(frames[-1]))
    frames += [await talk.next() for _ in range(2)]
    talk.send(ack_of(frames[-1]))
    frames += await talk.rest()

    events = turn_events(frames, "t1")
    assert [event.WhichOneof("event") for event in events] == [
        "accepted",
        "started",
        "delta",
        "completed",
    ]
    assert text_of(events) == (await bench.turn("t1")).output.text


async def test_an_acknowledgement_inside_a_joined_event_does_not_settle_it(spec: BenchSpec):
    async with session_bench(slow_engine(spec)) as bench:
        await bench.create()
        talk = bench.converse(
            open_frame(max_unacked_events=3), generate_frame("one", "t1", max_tokens=50)
        )
        await talk.next()
        await eventually(lambda: bool(bench.engine.requests))
        await ended(bench)
        frames = await talk.until(is_kind("delta"))
        joined = frames[-1].turn_event
        assert joined.sequence > joined.first_sequence

        inside = TurnCursor(turn_id="t1", epoch=joined.epoch, sequence=joined.first_sequence)
        talk.send(ack_frame(inside))
        frames += await talk.until(ends("t1"))
        live = bench.registry.surroundings.ended_logs.find(KEY, "t1")

        assert live is not None
        assert live.delivered.sequence == joined.first_sequence
        await talk.rest()
        assert live.delivered.sequence == frames[-1].turn_event.sequence


async def test_acknowledgements_that_can_not_be_right_are_rejected(bench: SessionBench):
    await bench.create()
    await bench.run("zero", "t0")
    talk = bench.converse(
        open_frame(max_unacked_events=100), generate_frame("one", "t1", max_tokens=5)
    )
    frames = await talk.until(ends("t1"))
    last = frames[-1].turn_event
    place = {"turn_id": "t1", "epoch": last.epoch, "sequence": last.sequence}
    bad = {
        "unknown": {"turn_id": "nowhere"},
        "of another stream": {"turn_id": "t0"},
        "beyond": {"sequence": last.sequence + 1},
        "other epoch": {"epoch": last.epoch + 1},
        "no id": {"turn_id": ""},
    }

    talk.send(*(ack_frame(TurnCursor(**place | each), name) for name, each in bad.items()))
    # What is right is taken in silence, also what is old news.
    for sequence in (2, last.sequence, last.sequence, 1):
        talk.send(ack_frame(TurnCursor(**place | {"sequence": sequence})))
    rejected = [frame.rejected for frame in await talk.rest()]

    named = {each.frame_id: each.failure.field_violations[0].field for each in rejected}
    assert named == {
        "unknown": "ack.turn_id",
        "of another stream": "ack.turn_id",
        "beyond": "ack.sequence",
        "other epoch": "ack.epoch",
        "no id": "ack.turn_id",
    }


async def test_half_closing_lifts_the_bound(bench: SessionBench):
    await bench.create()
    talk = bench.converse(
        open_frame(max_unacked_events=1),
        generate_frame("one", "t1", max_tokens=50),
        append_frame("two", "t2"),
    )

    frames = await talk.rest()

    for turn_id in ("t1", "t2"):
        assert turn_events(frames, turn_id)[-1].HasField("completed")


@pytest.mark.parametrize(
    ("on_disconnect", "num_tokens"),
    [(StartTurn.ON_DISCONNECT_CONTINUE, 60), (StartTurn.ON_DISCONNECT_CANCEL, None)],
)
async def test_a_reader_that_never_acknowledges_loses_the_stream_and_can_go_on(
    spec: BenchSpec, on_disconnect: int, num_tokens: int | None
):
    limits = dataclasses.replace(spec.limits, slow_reader_grace_s=0.1)
    async with session_bench(dataclasses.replace(spec, limits=limits)) as bench:
        await bench.create()
        bench.engine.hold()
        talk = bench.converse(
            open_frame(max_unacked_events=2),
            generate_frame("one", "t1", max_tokens=60, on_disconnect=on_disconnect),
        )
        seen = [await talk.next() for _ in range(2)]
        await eventually(lambda: bool(bench.engine.requests))
        talk.send(ack_of(seen[-1]))
        bench.engine.step(10)
        seen += [await talk.next() for _ in range(2)]
        bench.engine.step(5)

        error = await talk.error()
        bench.engine.release()
        await ended(bench)
        turn = await bench.turn("t1")
        cursor = ack_of(seen[-1]).ack
        again = bench.converse(open_frame(resume=[cursor]))
        rest = [f.turn_event for f in await again.rest() if f.HasField("turn_event")]

    assert error.reason == "SLOW_CONSUMER"
    assert error.metadata["resumable"] == "true"
    assert (error.metadata["turn"], error.metadata["sequence"]) == ("t1", "1")
    assert turn.state == Turn.STATE_COMPLETED
    assert num_tokens is None or turn.usage.output_tokens == num_tokens
    events = [frame.turn_event for frame in seen if frame.HasField("turn_event")]
    check_turn_events([*events, *rest])
    assert text_of([*events, *rest]) == turn.output.text


async def test_a_reader_that_acknowledges_in_time_keeps_its_stream(spec: BenchSpec):
    limits = dataclasses.replace(spec.limits, slow_reader_grace_s=0.2)
    passed_ns = 1
    # By this clock a stall of the machine takes no time.
    spec = dataclasses.replace(spec, limits=limits, monotonic_ns=lambda: passed_ns)
    async with session_bench(spec) as bench:
        await bench.create()
        talk = bench.converse(
            open_frame(max_unacked_events=1), generate_frame("one", "t1", max_tokens=60)
        )
        frames = [await talk.next() for _ in range(2)]
        while not ends("t1")(frames[-1]):
            reading = asyncio.create_task(talk.next())
            await asyncio.sleep(0.12)
            passed_ns += 120_000_000
            talk.send(ack_of(frames[-1]))
            frames.append(await reading)
        frames += await talk.rest()

    assert turn_events(frames, "t1")[-1].HasField("completed")


async def test_a_full_log_holds_the_turn_until_its_reader_has_caught_up(spec: BenchSpec):
    spec = slow_engine(spec, max_undelivered_bytes=400)
    async with session_bench(spec) as bench:
        await bench.create()
        start = start_turn("one", "t1", max_tokens=200)
        start.config.output.CopyFrom(OutputOptions(token_ids=True))
        talk = bench.converse(open_frame(max_unacked_events=2), ConverseRequest(generate=start))
        frames = [await talk.next() for _ in range(3)]
        await eventually(lambda: any(request.held for request in bench.engine.requests))
        request = bench.engine.requests[0]
        num_before = len(request.outputs[0].token_ids)
        for _ in range(50):
            await asyncio.sleep(0)
        num_held = len(request.outputs[0].token_ids)
        talk.send(ack_of(frames[-1]))
        while not ends("t1")(frames[-1]):
            frames.append(await talk.next())
            if frames[-1].HasField("turn_event"):
                talk.send(ack_of(frames[-1]))
        await talk.rest()
        turn = await bench.turn("t1")

    assert num_held <= num_before + 1 < 200
    assert turn.usage.output_tokens == 200
    assert text_of(turn_events(frames, "t1")) == turn.output.text


async def test_a_held_turn_goes_on_when_its_stream_has_gone(spec: BenchSpec):
    spec = slow_engine(spec, max_undelivered_bytes=400)
    async with session_bench(spec) as bench:
        await bench.create()
        talk = bench.converse(
            open_frame(max_unacked_events=2), generate_frame("one", "t1", max_tokens=200)
        )
        for _ in range(3):
            await talk.next()
        await eventually(lambda: any(request.held for request in bench.engine.requests))

        await talk.break_off()
        await ended(bench)

        assert (await bench.turn("t1")).usage.output_tokens == 200


async def test_a_held_turn_times_out(spec: BenchSpec):
    spec = slow_engine(spec, max_undelivered_bytes=400)
    async with session_bench(spec) as bench:
        await bench.create()
        start = start_turn("one", "t1", max_tokens=200)
        start.timeout.FromMilliseconds(1000)
        talk = bench.converse(open_frame(max_unacked_events=2), ConverseRequest(generate=start))
        frames = [await talk.next() for _ in range(3)]
        await eventually(lambda: any(request.held for request in bench.engine.requests))

        await ended(bench)
        frames += await talk.rest()

        assert turn_events(frames, "t1")[-1].failed.reason == "TIMEOUT"


async def test_a_stream_that_is_not_read_is_lost_and_its_session_free(spec: BenchSpec):
    async with session_bench(slow_engine(spec, slow_reader_grace_s=0.1)) as bench:
        await bench.create()
        bench.engine.hold()
        talk = bench.converse(open_frame(), generate_frame("one", "t1", max_tokens=60))
        await talk.until(is_kind("accepted"))
        # Nobody takes the next frame, as where a transport's window is full.
        await asyncio.sleep(0.3)

        other = bench.converse(open_frame())
        assert (await other.next()).HasField("opened")
        bench.engine.release()
        error = await talk.error()
        frames = await other.rest()

    assert error.reason == "SLOW_CONSUMER"
    assert turn_events(frames, "t1")[-1].completed.usage.output_tokens == 60


async def test_many_untold_ends_refuse_more_turns_instead_of_holding_up_acknowledgements(
    bench: SessionBench,
):
    await bench.create()
    talk = bench.converse(open_frame(max_unacked_events=1))
    await talk.next()
    logs = bench.registry.surroundings.ended_logs
    turn_ids = [f"t{number}" for number in range(MAX_WAITING_FRAMES)]
    for turn_id in turn_ids:
        talk.send(append_frame("x", turn_id))
        await eventually(lambda turn_id=turn_id: logs.find(KEY, turn_id) is not None)
    talk.send(append_frame("x", "more"))
    frames = await talk.until(is_kind("rejected"))

    assert frames[-1].rejected.failure.reason == "OVERLOADED"
    frames += await talk.rest()
    assert [f.turn_event.turn_id for f in frames if is_kind("completed")(f)] == turn_ids


def test_a_stream_may_be_behind_by_a_bounded_number_of_events():
    assert not Acknowledgements(0).counts
    assert Acknowledgements(2**32 - 1)._most == MAX_UNACKED_EVENTS


@pytest.mark.parametrize(("max_unacked_events", "num_kept"), [(100, 2), (0, 4)])
async def test_an_interrupt_keeps_what_was_acknowledged_or_else_sent(
    spec: BenchSpec, max_unacked_events: int, num_kept: int
):
    async with session_bench(spec) as bench:
        await bench.create()
        bench.engine.hold()
        talk = bench.converse(
            open_frame(max_unacked_events=max_unacked_events),
            generate_frame("one", "t1", max_tokens=60),
        )
        frames = await talk.until(is_kind("accepted"))
        await eventually(lambda: bool(bench.engine.requests))
        while sum(is_kind("delta")(frame) for frame in frames) < 4:
            bench.engine.step(1)
            if not await talk.is_silent(0.02):
                frames.append(await talk.next())
        deltas = [frame for frame in frames if is_kind("delta")(frame)]
        if max_unacked_events:
            talk.send(ack_of(deltas[num_kept - 1]))
        again = generate_frame("two", "t2", if_busy=StartTurn.IF_BUSY_INTERRUPT)
        talk.send(again)
        frames += await talk.until(ends("t1"))
        bench.engine.release()
        await talk.rest()
        turn = await bench.turn("t1")

    kept = [frame.turn_event for frame in deltas[:num_kept]]
    assert frames[-1].turn_event.completed.kept_sequence == kept[-1].sequence
    assert turn.output.text == text_of(kept)
