"""A turn that was interrupted, told again by the next server."""

from dataclasses import replace

from antiphon.v1.session_pb2 import ConverseRequest, StartTurn, Turn, TurnCursor
from antiphon.v1.types_pb2 import FINISH_REASON_CANCELLED

from support.crashes import copy_left_behind
from support.fake_engine import FakeEngine, fixed_ids
from support.session_bench import (
    BenchSpec,
    ends,
    eventually,
    generate_frame,
    is_kind,
    open_frame,
    session_bench,
    text_of,
)

LETTERS = (70, 71, 72, 73)


async def test_reader_that_saw_more_than_is_kept_starts_over(spec: BenchSpec) -> None:
    spec.engine = lambda: FakeEngine(script=fixed_ids(*LETTERS * 30))
    async with session_bench(spec) as bench:
        await bench.create()
        bench.engine.hold()
        start = generate_frame("hi", "t1", max_tokens=100)
        talk = bench.converse(open_frame(max_unacked_events=100), start)
        frames = await talk.until(is_kind("accepted"))
        await eventually(lambda: bool(bench.engine.requests))
        for _ in range(5):
            bench.engine.step()
            frames += await talk.until(is_kind("delta"))
        seen = [frame.turn_event for frame in frames if frame.HasField("turn_event")]
        taken_in = TurnCursor(turn_id="t1", epoch=seen[-1].epoch, sequence=seen[-1].sequence - 3)
        talk.send(
            ConverseRequest(ack=taken_in),
            generate_frame("no", "t2", if_busy=StartTurn.IF_BUSY_INTERRUPT),
        )
        await talk.until(ends("t1"))
        left = copy_left_behind(spec.path)
    cursor = TurnCursor(turn_id="t1", epoch=seen[-1].epoch, sequence=seen[-1].sequence)
    async with session_bench(replace(spec, path=left)) as bench:
        kept = await bench.turn("t1")
        talk = bench.converse(open_frame(resume=[cursor]))
        frames = await talk.until(ends("t1"))
    events = [frame.turn_event for frame in frames if frame.turn_event.turn_id == "t1"]

    assert kept.state == Turn.STATE_COMPLETED
    assert kept.output.finish_reason == FINISH_REASON_CANCELLED
    assert text_of(seen).startswith(kept.output.text)
    assert len(kept.output.text) < len(text_of(seen))
    assert events[0].HasField("reset")
    assert text_of(events) == kept.output.text
