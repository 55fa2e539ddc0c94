import asyncio

import pytest
from antiphon.v1.session_pb2 import (
    ConverseRequest,
    CreateSessionRequest,
    OpenSession,
    Session,
    StartTurn,
    Turn,
    TurnCursor,
)
from antiphon.v1.types_pb2 import FINISH_REASON_CANCELLED, GoAway

from antiphon_engine.api.errors import AntiphonError, ErrorReason, InvalidRequest
from antiphon_server.services.converse_stream import MAX_REPEATS, MAX_WAITING_FRAMES
from antiphon_server.services.opening import MAX_CURSORS
from support.session_bench import (
    KEY,
    BenchSpec,
    SessionBench,
    Talk,
    append_frame,
    cancel_frame,
    ends,
    eventually,
    generate_frame,
    is_kind,
    open_frame,
    text_of,
    turn_events,
)


async def opened(bench: SessionBench, *frames: ConverseRequest) -> Talk:
    """A stream that is attached and has sent frames."""
    talk = bench.converse(open_frame(), *frames)
    assert (await talk.next()).opened.session.name == KEY.name
    return talk


async def ended_with(talk: Talk) -> AntiphonError:
    with pytest.raises(AntiphonError) as caught:
        await talk.rest()
    return caught.value


async def test_two_turns_and_half_close_are_answered_in_full(bench: SessionBench):
    await bench.create()
    talk = await opened(bench, generate_frame("one", "t1"), generate_frame("two", "t2"))

    frames = await talk.rest()

    for turn_id in ("t1", "t2"):
        events = turn_events(frames, turn_id)
        assert events[0].accepted.frame_id == f"g{turn_id}"
        assert text_of(events) == (await bench.turn(turn_id)).output.text


async def test_half_close_without_a_word_ends_well(bench: SessionBench):
    talk = bench.converse()

    assert await talk.rest() == []


async def test_half_close_without_a_turn_ends_well(bench: SessionBench):
    await bench.create()
    talk = bench.converse(open_frame())

    assert [frame.WhichOneof("frame") for frame in await talk.rest()] == ["opened"]


async def test_a_stream_may_make_its_session(bench: SessionBench):
    create = CreateSessionRequest(session_id="a", session=Session(instructions="be"))
    talk = bench.converse(ConverseRequest(open=OpenSession(create=create)))

    frame = await talk.next()

    assert frame.opened.session.instructions == "be"
    assert frame.opened.session.HasField("residency")
    await talk.rest()


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (generate_frame("one"), ErrorReason.INVALID_FIELD),
        (ConverseRequest(), ErrorReason.INVALID_FIELD),
        (ConverseRequest(open=OpenSession()), ErrorReason.INVALID_FIELD),
        (open_frame("sessions/UPPER"), ErrorReason.INVALID_FIELD),
        (open_frame("sessions/nowhere"), ErrorReason.SESSION_NOT_FOUND),
        (open_frame(attachment_id="x" * 257), ErrorReason.INVALID_FIELD),
        (open_frame(watch_only=True, take_over=True), ErrorReason.INVALID_FIELD),
        (open_frame(watch_only=True, max_unacked_events=1), ErrorReason.INVALID_FIELD),
        (open_frame(resume=[TurnCursor(turn_id="?")]), ErrorReason.INVALID_FIELD),
        (open_frame(resume=[TurnCursor(turn_id="t")] * 2), ErrorReason.INVALID_FIELD),
        (
            open_frame(resume=[TurnCursor(turn_id=f"t{n}") for n in range(MAX_CURSORS + 1)]),
            ErrorReason.INVALID_FIELD,
        ),
        (open_frame(resume=[TurnCursor(turn_id="t")]), ErrorReason.TURN_NOT_FOUND),
    ],
)
async def test_a_refused_open_ends_the_call(
    bench: SessionBench, frame: ConverseRequest, reason: ErrorReason
):
    await bench.create()

    assert (await ended_with(bench.converse(frame))).reason is reason


async def test_a_refused_frame_is_told_and_the_stream_goes_on(bench: SessionBench):
    await bench.create()
    bad = [
        ConverseRequest(frame_id="1", ack=TurnCursor(turn_id="t")),
        ConverseRequest(frame_id="2", generate=StartTurn(turn_id="t", if_busy=99)),
        ConverseRequest(frame_id="3"),
        open_frame(),
        cancel_frame("nowhere"),
        ConverseRequest.FromString(
            ConverseRequest(frame_id="6").SerializeToString() + b"\xf8\x07\x01"
        ),
        generate_frame("", "t0"),
    ]
    talk = await opened(bench, *bad, generate_frame("one", "t1"))

    frames = await talk.rest()

    rejected = [frame.rejected for frame in frames if frame.WhichOneof("frame") == "rejected"]
    assert [(r.frame_id, r.failure.reason) for r in rejected] == [
        ("1", "INVALID_FIELD"),
        ("2", "INVALID_FIELD"),
        ("3", "INVALID_FIELD"),
        ("open", "INVALID_FIELD"),
        ("cnowhere", "TURN_NOT_FOUND"),
        ("6", "INVALID_FIELD"),
        ("gt0", "INVALID_FIELD"),
    ]
    assert rejected[1].turn_id == "t"
    assert turn_events(frames, "t1")[-1].HasField("completed")


async def test_many_refused_frames_hold_up_the_stream_and_are_all_told(bench: SessionBench):
    await bench.create()
    talk = await opened(bench, *(cancel_frame(f"x{number}") for number in range(300)))

    frames = await talk.rest()

    assert [frame.rejected.turn_id for frame in frames] == [f"x{n}" for n in range(300)]


async def test_one_stream_at_a_time_drives_a_session(bench: SessionBench):
    await bench.create()
    first = await opened(bench)

    error = await ended_with(bench.converse(open_frame()))
    await first.rest()
    second = await opened(bench)
    await second.rest()

    assert error.reason is ErrorReason.SESSION_ATTACHED
    assert error.metadata["since"]


async def test_a_generate_behind_a_cancel_never_fails_as_busy(bench: SessionBench):
    await bench.create()
    bench.engine.hold()
    talk = await opened(bench, generate_frame("one", "t1", max_tokens=100))
    await talk.until(is_kind("accepted"))
    await eventually(lambda: bench.engine.requests)
    bench.engine.step(2)

    talk.send(cancel_frame("t1"), generate_frame("two", "t2", if_busy=StartTurn.IF_BUSY_REJECT))
    frames = await talk.until(ends("t1"))
    bench.engine.release()
    frames += await talk.rest()

    assert frames[-1].turn_event.HasField("completed")
    assert not any(is_kind("rejected")(frame) for frame in frames)
    first_end = next(f for f in frames if ends("t1")(f)).turn_event.completed
    assert first_end.finish_reason == FINISH_REASON_CANCELLED


async def test_a_cancel_right_behind_its_generate_stops_it(bench: SessionBench):
    await bench.create()
    bench.engine.hold()
    talk = await opened(bench, generate_frame("one", "t1"), cancel_frame("t1"))

    frames = await talk.rest()

    events = turn_events(frames, "t1")
    assert [event.WhichOneof("event") for event in events][-1] == "failed"
    assert events[-1].failed.code == 1
    assert bench.engine.num_running == 0


async def test_appends_and_generates_are_handled_in_order(bench: SessionBench):
    await bench.create()
    talk = await opened(
        bench, append_frame("zero", "a1"), generate_frame("", "t1"), append_frame("x", "a2")
    )

    frames = await talk.rest()

    ended = [f.turn_event.turn_id for f in frames if is_kind("completed")(f)]
    assert ended == ["a1", "t1", "a2"]


async def test_a_failed_turn_is_told_in_band(bench: SessionBench):
    await bench.create()
    talk = await opened(bench, generate_frame("x" * 300, "t1"), generate_frame("ok", "t2"))

    frames = await talk.rest()

    assert turn_events(frames, "t1")[-1].failed.reason == "CONTEXT_LENGTH_EXCEEDED"
    assert turn_events(frames, "t2")[-1].HasField("completed")


@pytest.mark.parametrize(
    ("on_disconnect", "state", "num_tokens"),
    [
        (StartTurn.ON_DISCONNECT_CANCEL, Turn.STATE_COMPLETED, 2),
        (StartTurn.ON_DISCONNECT_CONTINUE, Turn.STATE_COMPLETED, 20),
        (StartTurn.ON_DISCONNECT_UNSPECIFIED, Turn.STATE_COMPLETED, 20),
    ],
)
async def test_a_broken_stream_leaves_its_turn_as_it_asked(
    bench: SessionBench, on_disconnect: int, state: int, num_tokens: int
):
    await bench.create()
    bench.engine.hold()
    talk = await opened(
        bench, generate_frame("one", "t1", max_tokens=20, on_disconnect=on_disconnect)
    )
    await talk.until(is_kind("accepted"))
    await eventually(lambda: bench.engine.requests)
    bench.engine.step(2)
    await talk.until(is_kind("delta"))

    await talk.break_off()
    await asyncio.sleep(0.02)
    bench.engine.release()
    turn = await ended_turn(bench, "t1")

    assert turn.state == state
    assert turn.usage.output_tokens == num_tokens


async def test_a_stream_gets_unfinished_turns_from_their_start(bench: SessionBench):
    await bench.create()
    bench.engine.hold()
    broken = await opened(bench, generate_frame("one", "t1", max_tokens=6))
    await broken.until(is_kind("accepted"))
    await broken.break_off()

    talk = await opened(bench)
    bench.engine.release()
    frames = await talk.rest()

    events = turn_events(frames, "t1")
    assert events[0].accepted.frame_id == "gt1"
    assert events[-1].completed.usage.output_tokens == 6


async def test_changes_by_others_are_told(bench: SessionBench):
    await bench.create()
    talk = await opened(bench, generate_frame("mine", "t1"))
    mine = await talk.until(ends("t1"))

    await bench.run("theirs", "t2")
    frame = await talk.next()
    await talk.rest()

    assert not any(is_kind("changed")(frame) for frame in mine)
    assert frame.changed.session.head_turn == "sessions/a/turns/t2"


async def test_deleting_a_session_ends_its_turns_and_its_stream(bench: SessionBench):
    await bench.create()
    bench.engine.hold()
    talk = await opened(bench, generate_frame("one", "t1", max_tokens=100))
    await talk.until(is_kind("accepted"))
    await eventually(lambda: bench.engine.requests)
    bench.engine.step(2)

    await bench.registry.delete(KEY, "")
    frames = await talk.until(is_kind("go_away"))
    error = await ended_with(talk)

    assert any(ends("t1")(frame) for frame in frames)
    assert frames[-1].go_away.reason == GoAway.REASON_SESSION_GONE
    assert error.reason is ErrorReason.SESSION_NOT_FOUND
    assert bench.engine.num_running == 0
    assert bench.registry.num_sessions == 0


async def test_draining_lets_turns_end_refuses_new_ones_and_then_ends_the_stream(
    bench: SessionBench,
):
    await bench.create()
    bench.engine.hold()
    talk = await opened(bench, generate_frame("one", "t1"))
    await talk.until(is_kind("accepted"))

    bench.registry.drain(time_left_s=2.5)
    talk.send(generate_frame("two", "t2"))
    before = await talk.until(is_kind("rejected"))
    bench.engine.release()
    after = await talk.until(ends("t1"))
    error = await ended_with(talk)

    away = next(frame.go_away for frame in before if is_kind("go_away")(frame))
    assert (away.reason, away.time_left.ToMilliseconds()) == (GoAway.REASON_DRAINING, 2500)
    assert before[-1].rejected.failure.reason == "DRAINING"
    assert after[-1].turn_event.HasField("completed")
    assert error.reason is ErrorReason.DRAINING


async def test_a_reader_that_does_not_read_costs_few_events(bench: SessionBench, spec: BenchSpec):
    await bench.create()
    talk = await opened(bench, generate_frame("one", "t1", max_tokens=200))
    first = await talk.next()
    await ended_turn(bench, "t1")

    frames = [first, *await talk.rest()]

    assert len(frames) <= 6
    assert turn_events(frames, "t1")[-1].completed.usage.output_tokens == 200


async def ended_turn(bench: SessionBench, turn_id: str) -> Turn:
    """Waits until a turn has ended."""
    async with asyncio.timeout(60):
        while True:
            turn = await bench.turn(turn_id)
            if turn.state not in (Turn.STATE_QUEUED, Turn.STATE_RUNNING):
                return turn
            await asyncio.sleep(0.01)


async def test_fields_of_a_session_that_a_stream_would_make_are_named_from_the_frame(
    bench: SessionBench,
):
    create = CreateSessionRequest(session_id="A!")

    talk = bench.converse(ConverseRequest(open=OpenSession(create=create)))
    with pytest.raises(InvalidRequest) as caught:
        await talk.next()

    assert caught.value.violations[0].field == "open.create.session_id"


async def test_a_cancel_behind_many_repeats_of_a_turn_is_not_held_up(bench: SessionBench):
    await bench.create()
    bench.engine.hold()
    talk = bench.converse(open_frame())
    talk.send(*[generate_frame("hi", "t", max_tokens=100)] * 200, cancel_frame("t"))

    frames = await talk.until(ends("t"))

    rejected = [frame.rejected for frame in frames if frame.HasField("rejected")]
    assert len(rejected) == 200 - MAX_REPEATS
    assert {each.failure.reason for each in rejected} == {"OVERLOADED"}


async def test_many_appends_that_nobody_reads_hold_up_their_own_stream(bench: SessionBench):
    await bench.create()
    talk = bench.converse(open_frame())
    await talk.next()
    talk.send(*(append_frame("x", f"t{number}") for number in range(300)))
    told = [(await talk.next()).turn_event]
    for _ in range(20):
        await asyncio.sleep(0.01)

    num_turns = (await bench.session()).num_turns

    assert num_turns <= MAX_WAITING_FRAMES + bench.registry.surroundings.limits.max_queued_turns + 1
    told += [frame.turn_event for frame in await talk.rest()]
    ended = [event.turn_id for event in told if event.HasField("completed")]
    assert ended == [f"t{number}" for number in range(300)]
