"""What a stream is told once more takes room until it is acknowledged once more."""

from antiphon.v1.session_pb2 import ConverseRequest, ConverseResponse, TurnCursor

from support.session_bench import (
    SessionBench,
    ends,
    eventually,
    generate_frame,
    is_kind,
    open_frame,
)


def ack_of(frame: ConverseResponse) -> ConverseRequest:
    event = frame.turn_event
    cursor = TurnCursor(turn_id=event.turn_id, epoch=event.epoch, sequence=event.sequence)
    return ConverseRequest(frame_id="ack", ack=cursor)


async def test_a_reset_takes_no_room_since_nobody_can_acknowledge_it(bench: SessionBench):
    await bench.create()
    await bench.run("one", "t1")
    foreign = TurnCursor(turn_id="t1", epoch=999, sequence=2)
    talk = bench.converse(open_frame(max_unacked_events=1, resume=[foreign]))

    frames = [await talk.next()]
    while not ends("t1")(frames[-1]):
        frames.append(await talk.next())
        if frames[-1].turn_event.sequence:
            talk.send(ack_of(frames[-1]))

    kinds = [frame.turn_event.WhichOneof("event") for frame in frames[1:]]
    assert kinds == ["reset", "accepted", "started", "delta", "completed"]


async def test_a_turn_that_is_told_twice_can_be_taken_in_twice(bench: SessionBench):
    bench.engine.hold()
    await bench.create()
    talk = bench.converse(open_frame(max_unacked_events=1), generate_frame("one", "t1"))
    for _ in range(2):
        frames = await talk.until(is_kind("accepted"))
        talk.send(ack_of(frames[-1]))
        talk.send(generate_frame("one", "t1"))
    bench.engine.release()
    await eventually(lambda: bench.registry.num_live_turns == 0)

    num_ends = 0
    while num_ends < 3:
        frame = await talk.next()
        talk.send(ack_of(frame))
        num_ends += ends("t1")(frame)
    talk.send(generate_frame("two", "t2"))

    assert is_kind("accepted")(await talk.next())
