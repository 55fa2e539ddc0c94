"""Streams that break while turns that they brought wait to be told of."""

import dataclasses

from antiphon.v1.session_pb2 import StartTurn
from antiphon.v1.types_pb2 import FINISH_REASON_CANCELLED

from antiphon_server.services.converse_stream import MAX_WAITING_FRAMES
from support.session_bench import (
    BenchSpec,
    append_frame,
    eventually,
    generate_frame,
    open_frame,
    session_bench,
)


async def test_a_turn_that_waits_to_be_told_of_is_cancelled_with_its_stream(spec: BenchSpec):
    limits = dataclasses.replace(spec.limits, max_queued_turns=2 * MAX_WAITING_FRAMES)
    async with session_bench(dataclasses.replace(spec, limits=limits)) as bench:
        await bench.create()
        bench.engine.hold()
        appends = [append_frame("x", f"a{number}") for number in range(MAX_WAITING_FRAMES)]
        last = generate_frame(
            "go", "t1", max_tokens=50, on_disconnect=StartTurn.ON_DISCONNECT_CANCEL
        )
        talk = bench.converse(open_frame(), *appends, last)
        await talk.next()
        await eventually(lambda: len(bench.engine.requests) == 1)
        bench.engine.step(3)

        await talk.break_off()
        bench.engine.release()
        await eventually(lambda: bench.registry.num_live_turns == 0)

        turn = await bench.turn("t1")
        assert turn.failure.reason or turn.output.finish_reason == FINISH_REASON_CANCELLED
