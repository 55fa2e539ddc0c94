"""Sessions that go back in their history."""

import asyncio
import uuid

import pytest
from antiphon.v1.session_pb2 import HistoryPoint, RewindSessionRequest, Turn

from antiphon_engine.api.errors import ErrorReason, InvalidRequest
from support.failing import refused
from support.session_bench import (
    KEY,
    BenchSpec,
    SessionBench,
    eventually,
    is_kind,
    open_frame,
    session_bench,
)

START = HistoryPoint(start={})
REQUEST_ID = str(uuid.UUID(int=7))


def behind(turn_id: str) -> HistoryPoint:
    return HistoryPoint(turn=KEY.turn_name(turn_id))


async def three_turns(bench: SessionBench) -> None:
    await bench.create()
    for number in (1, 2, 3):
        await bench.run(f"{number}", f"t{number}")


async def test_a_session_goes_back_to_a_turn(bench: SessionBench):
    await three_turns(bench)
    before = await bench.session()

    told = await bench.rewind(to=behind("t1"), etag=before.etag)
    await bench.run("2", "t4")

    assert (told.head_turn, told.num_turns) == (KEY.turn_name("t1"), 1)
    assert told.etag != before.etag
    assert bench.prompts[3] == bench.prompts[1]
    assert [turn.state for turn in await bench.turns()] == [
        Turn.STATE_COMPLETED,
        Turn.STATE_SUPERSEDED,
        Turn.STATE_SUPERSEDED,
        Turn.STATE_COMPLETED,
    ]


async def test_a_session_goes_back_to_its_start_and_over_a_restart(spec: BenchSpec):
    async with session_bench(spec) as bench:
        await three_turns(bench)
        told = await bench.rewind(to=START)
        first = bench.prompts[0]
    async with session_bench(spec) as bench:
        again = await bench.session()
        await bench.run("1", "t4")

        assert (told.head_turn, told.num_turns, again.etag) == ("", 0, told.etag)
        assert bench.prompts[0] == first
        assert len(await bench.turns()) == 4


async def test_items_that_no_answer_took_in_go_with_a_rewind(bench: SessionBench):
    await three_turns(bench)
    await bench.append("more", "t4")

    await bench.rewind(to=behind("t3"))
    await bench.run("x", "t5")
    await bench.rewind(to=behind("t3"))
    await bench.run("x", "t6")

    assert bench.prompts[3] == bench.prompts[4]


async def test_a_stale_etag_refuses_and_stops_nothing(bench: SessionBench):
    await three_turns(bench)
    stale = (await bench.session()).etag
    await bench.append("more", "t4")
    bench.engine.hold()
    running = asyncio.create_task(bench.run("5", "t5"))
    await eventually(lambda: len(bench.prompts) == 4)

    error = await refused(bench.rewind(to=START, etag=stale, cancel_active=True))
    bench.engine.release()

    assert error.reason is ErrorReason.STALE_HEAD
    assert (await running)[-1].HasField("completed")


async def test_a_busy_session_is_refused_with_the_turn_in_the_way(bench: SessionBench):
    await three_turns(bench)
    bench.engine.hold()
    running = asyncio.create_task(bench.run("4", "t4"))
    await eventually(lambda: len(bench.prompts) == 4)

    error = await refused(bench.rewind(to=behind("t1")))
    bench.engine.release()
    await running

    assert error.reason is ErrorReason.SESSION_BUSY
    assert error.metadata["turn"] == KEY.turn_name("t4")
    assert (await bench.session()).num_turns == 4


@pytest.mark.parametrize("num_steps", [0, 3])
async def test_turns_are_stopped_for_a_rewind_where_asked(bench: SessionBench, num_steps: int):
    await three_turns(bench)
    bench.engine.hold()
    runs = [asyncio.create_task(bench.run(f"{n}", f"t{n}")) for n in (4, 5)]
    await eventually(lambda: len(bench.prompts) == 4)
    bench.engine.step(num_steps)
    await asyncio.sleep(0.01)

    told = await bench.rewind(to=behind("t1"), cancel_active=True)
    bench.engine.release()
    running, waiting = await asyncio.gather(*runs)

    assert told.head_turn == KEY.turn_name("t1")
    assert running[-1].WhichOneof("event") == ("completed" if num_steps else "failed")
    assert waiting[-1].HasField("failed")
    states = {turn.name: turn.state for turn in await bench.turns()}
    ended = Turn.STATE_SUPERSEDED if num_steps else Turn.STATE_FAILED
    assert states[KEY.turn_name("t4")] == ended


async def test_a_place_that_is_not_there_stops_no_turn(bench: SessionBench):
    await three_turns(bench)
    bench.engine.hold()
    running = asyncio.create_task(bench.run("4", "t4"))
    await eventually(lambda: len(bench.prompts) == 4)

    error = await refused(bench.rewind(to=behind("nowhere"), cancel_active=True))
    bench.engine.release()

    assert error.reason is ErrorReason.TURN_NOT_FOUND
    assert (await running)[-1].HasField("completed")


async def test_a_place_out_of_the_history_is_refused(bench: SessionBench):
    await three_turns(bench)
    await bench.rewind(to=behind("t1"))

    error = await refused(bench.rewind(to=behind("t2")))

    assert isinstance(error, InvalidRequest)
    assert [violation.field for violation in error.violations] == ["to.turn"]
    assert "t2 was superseded" in error.message


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({}, "to"),
        ({"to": HistoryPoint()}, "to"),
        ({"to": HistoryPoint(turn="t1")}, "to.turn"),
        ({"to": START, "request_id": "x"}, "request_id"),
        ({"to": START, "name": "x"}, "name"),
    ],
)
async def test_a_field_at_fault_is_named(
    bench: SessionBench, values: dict[str, object], field: str
):
    await three_turns(bench)

    error = await refused(bench.rewind(**values))

    assert [violation.field for violation in error.violations] == [field]


async def test_a_retry_gets_the_first_answer_and_rewinds_once(bench: SessionBench):
    await three_turns(bench)
    first = await bench.rewind(to=behind("t1"), request_id=REQUEST_ID)
    await bench.run("x", "t4")

    again = await bench.rewind(to=behind("t1"), request_id=REQUEST_ID)
    other = await refused(bench.rewind(to=START, request_id=REQUEST_ID))

    assert again == first
    assert (await bench.session()).num_turns == 2
    assert other.reason is ErrorReason.ID_TAKEN


async def test_a_turn_that_comes_meanwhile_stands_on_the_new_head(bench: SessionBench):
    await three_turns(bench)
    bench.engine.hold()
    running = asyncio.create_task(bench.run("4", "t4"))
    await eventually(lambda: len(bench.prompts) == 4)
    async with bench.registry.use(KEY) as session:
        (turn,) = session.live_turns
    rewind = asyncio.create_task(bench.rewind(to=behind("t1"), cancel_active=True))
    while not turn.cancel_asked:  # noqa: ASYNC110 - looks at each turn of the loop
        await asyncio.sleep(0)
    late = asyncio.create_task(bench.run("2", "t5"))
    await asyncio.gather(rewind, running)
    bench.engine.release()
    await late

    assert bench.prompts[-1] == bench.prompts[1]
    assert (await bench.session()).head_turn == KEY.turn_name("t5")


async def test_the_stream_that_drives_the_session_is_told(bench: SessionBench):
    await three_turns(bench)
    talk = bench.converse(open_frame())
    await talk.next()

    await bench.rewind(to=behind("t1"))
    frames = await talk.until(is_kind("changed"))

    assert frames[-1].changed.session.head_turn == KEY.turn_name("t1")


async def test_other_tenants_sessions_are_not_found(bench: SessionBench):
    await three_turns(bench)

    error = await refused(
        bench.registry.rewind("other", RewindSessionRequest(name=KEY.name, to=START))
    )

    assert error.reason is ErrorReason.SESSION_NOT_FOUND
