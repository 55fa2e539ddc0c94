import asyncio

from antiphon.v1.session_pb2 import (
    StartTurn,
    Turn,
)
from antiphon.v1.types_pb2 import (
    FINISH_REASON_CANCELLED,
)
from google.protobuf.duration_pb2 import Duration

from antiphon_engine.api.errors import AntiphonError, ErrorReason
from support.failing import refused
from support.fake_renderer import ids_of
from support.session_bench import (
    KEY,
    SessionBench,
    eventually,
    text_of,
)


async def test_a_cancelled_turn_keeps_what_it_has(bench: SessionBench):
    await bench.create()
    bench.engine.hold()
    running = asyncio.create_task(bench.run("hi", "t1", max_tokens=100))
    await submitted(bench)
    bench.engine.step(3)
    await asyncio.sleep(0.01)

    await cancel(bench, "t1")
    events = await running
    bench.engine.release()
    await bench.run("more")

    assert events[-1].completed.finish_reason == FINISH_REASON_CANCELLED
    assert events[-1].completed.usage.output_tokens == 3
    assert bench.prompts[1][: len(bench.prompts[0]) + 3] == bench.prompts[0] + bench.outputs[0]


async def test_a_discarded_turn_leaves_the_history_as_before(bench: SessionBench):
    await bench.create()
    bench.engine.hold()
    running = asyncio.create_task(bench.run("hi", "t1", max_tokens=100))
    await submitted(bench)
    bench.engine.step(3)
    await asyncio.sleep(0.01)

    await cancel(bench, "t1", discards=True)
    events = await running

    turn = await bench.turn("t1")
    assert events[-1].failed.code == 1
    assert turn.state == Turn.STATE_FAILED
    assert not turn.HasField("output")
    assert (await bench.session()).num_turns == 0


async def test_a_turn_stopped_before_any_output_is_discarded(bench: SessionBench):
    await bench.create()
    bench.engine.hold()
    running = asyncio.create_task(bench.run("hi", "t1"))
    await submitted(bench)

    await cancel(bench, "t1")
    events = await running

    assert events[-1].failed.code == 1
    assert (await bench.turn("t1")).state == Turn.STATE_FAILED


async def test_cancelling_is_idempotent_and_knows_what_is_not_there(bench: SessionBench):
    await bench.create()
    await bench.run("hi", "t1")

    await cancel(bench, "t1")
    error = await refused(cancel(bench, "t2"))

    assert (await bench.turn("t1")).state == Turn.STATE_COMPLETED
    assert error.reason is ErrorReason.TURN_NOT_FOUND


async def test_turns_queue_in_order_up_to_the_bound(bench: SessionBench):
    await bench.create()
    bench.engine.hold()
    running = [asyncio.create_task(bench.run("0", "t0"))]
    await submitted(bench)
    for number in range(1, 4):
        running.append(asyncio.create_task(bench.run(str(number), f"t{number}")))
        await asyncio.sleep(0.02)

    error = await refused(bench.run("4", "t4"))
    busy = await refused(bench.run("5", "t5", if_busy=StartTurn.IF_BUSY_REJECT))
    queued = await bench.turn("t3")
    bench.engine.release()
    told = await asyncio.gather(*running)

    assert error.reason is ErrorReason.OVERLOADED
    assert error.retry_delay_s
    assert busy.reason is ErrorReason.SESSION_BUSY
    assert busy.metadata["turn"] == "sessions/a/turns/t0"
    assert queued.state == Turn.STATE_QUEUED
    assert [events[0].accepted.num_before for events in told] == [0, 1, 2, 3]
    assert [prompt[-2] for prompt in bench.prompts] == ids_of("0123")


async def test_a_queued_turn_that_is_cancelled_ends_at_once(bench: SessionBench):
    await bench.create()
    bench.engine.hold()
    first = asyncio.create_task(bench.run("0", "t0"))
    await submitted(bench)
    second = asyncio.create_task(bench.run("1", "t1"))
    await asyncio.sleep(0.02)

    await cancel(bench, "t1")
    events = await second

    assert events[-1].failed.code == 1
    assert not first.done()
    bench.engine.release()
    assert (await first)[-1].HasField("completed")


async def test_a_timeout_fails_a_turn_in_the_queue_and_one_that_runs(bench: SessionBench):
    await bench.create()
    bench.engine.hold()
    timeout = Duration(nanos=150_000_000)
    first = asyncio.create_task(bench.run("0", "t0", timeout=timeout, max_tokens=100))
    await submitted(bench)
    bench.engine.step(2)
    second = asyncio.create_task(bench.run("1", "t1", timeout=timeout))

    told = await asyncio.gather(first, second)

    assert [events[-1].failed.reason for events in told] == ["TIMEOUT", "TIMEOUT"]
    assert told[0][-1].failed.metadata["turn"] == "sessions/a/turns/t0"
    assert (await bench.turn("t0")).output.text == text_of(told[0])
    assert (await bench.session()).num_turns == 0


async def test_a_refusal_of_the_engine_fails_the_turn_and_the_session_goes_on(bench: SessionBench):
    await bench.create()
    bench.engine.hold()
    running = asyncio.create_task(bench.run("0", "t0"))
    await submitted(bench)

    bench.engine.fail_all(AntiphonError(ErrorReason.NEVER_FITS, "it said no", retry_delay_s=1.0))
    events = await running
    bench.engine.release()
    after = await bench.run("1", "t1")

    assert events[-1].failed.reason == "NEVER_FITS"
    assert events[-1].failed.retry_delay.seconds == 1
    assert after[-1].HasField("completed")


async def submitted(bench: SessionBench, num_requests: int = 1) -> None:
    """Waits until the engine has a number of requests."""
    await eventually(lambda: len(bench.engine.requests) >= num_requests)


async def cancel(bench: SessionBench, turn_id: str, *, discards: bool = False) -> None:
    async with bench.registry.use(KEY) as session:
        live = await session.cancel_turn(turn_id, discards=discards)
        if live is not None:
            await live.ended.wait()
