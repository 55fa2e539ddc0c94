"""Readers of turns that were taken up: bounded like those of turns that came now."""

from dataclasses import replace

from antiphon.v1.types_pb2 import OutputOptions

from antiphon_server.sessions.turn_request import Frame, read_start_turn
from support.fake_engine import FakeEngine
from support.session_bench import (
    KEY,
    BenchSpec,
    eventually,
    open_frame,
    session_bench,
    start_turn,
)


async def test_a_turn_that_was_taken_up_is_held_where_its_reader_stays_away(spec: BenchSpec):
    start = start_turn("one", "t1", max_tokens=200)
    start.config.output.CopyFrom(OutputOptions(token_ids=True))
    async with session_bench(spec) as bench:
        await bench.create()
        bench.engine.hold()
        async with bench.registry.use(KEY) as session:
            await session.start_turn(read_start_turn(start, Frame(path="turn")))
    limits = replace(spec.limits, max_undelivered_bytes=400)
    engine = FakeEngine(step_interval_s=0.002)
    async with session_bench(replace(spec, limits=limits, engine=lambda: engine)) as bench:
        talk = bench.converse(open_frame(max_unacked_events=2))
        for _ in range(3):
            await talk.next()

        await eventually(lambda: any(request.held for request in bench.engine.requests))
