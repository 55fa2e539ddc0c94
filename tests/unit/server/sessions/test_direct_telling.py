"""Output that is written where it comes about, beside the stream's task."""

import asyncio
import time
from dataclasses import replace

import pytest
from antiphon.v1.session_pb2 import ConverseResponse, TurnAccepted, TurnEvent

from antiphon_engine.api.errors import AntiphonError
from antiphon_server.access.authentication import bad_credential
from antiphon_server.call_writer import CallWriter
from antiphon_server.services.acknowledgements import Acknowledgements
from antiphon_server.services.direct_telling import DirectTelling, Telling
from antiphon_server.services.reader_watch import Grace, ReaderWatch
from antiphon_server.sessions.event_log import EventLog, EventReader, ReaderSpec
from support.direct_frames import DirectFrames
from support.fake_engine import FakeEngine
from support.session_bench import (
    BenchSpec,
    ends,
    generate_frame,
    open_frame,
    session_bench,
    text_of,
    turn_events,
)

GRACE_S = 0.02


class Told:
    """A log, its one reader, and what is told of it."""

    def __init__(self, *, most_unacked: int = 0) -> None:
        self.frames = DirectFrames()
        self.refusal: AntiphonError | None = None
        self.wake = asyncio.Event()
        self.acks = Acknowledgements(most_unacked)
        self.num_aways = 0
        self.watch = ReaderWatch(
            Grace(grace_s=GRACE_S, clock_ns=time.monotonic_ns), on_away=self._note_away
        )
        writer = CallWriter(self.frames, self._check)
        self.telling = DirectTelling(
            writer,
            Telling(wake=self.wake, acks=self.acks, watch=self.watch),
        )
        self.log = EventLog("t1", 1)
        self.log.append(TurnEvent(accepted=TurnAccepted()))
        self.reader: EventReader = self.log.open_reader(
            self.wake, ReaderSpec(drives=True), take_news=self.telling.tell
        )
        self.acks.follow(self.reader)
        self.reader.read()
        self.task: asyncio.Task[None] | None = None

    async def begin_to_wait(self) -> None:
        """Has the stream's task wait for news."""
        self.wake.clear()
        self.task = asyncio.create_task(self.telling.wait_for_news())
        await asyncio.sleep(0)

    def take(self) -> str | None:
        """What a direct write holds, which is taken by that."""
        frame = self.frames.take()
        return None if frame is None else frame.turn_event.delta.text

    def _note_away(self) -> None:
        self.num_aways += 1

    def _check(self) -> None:
        if self.refusal is not None:
            raise self.refusal


async def waiting(**values: int) -> Told:
    told = Told(**values)
    await told.begin_to_wait()
    return told


async def test_output_is_written_and_wakes_no_task():
    told = await waiting()

    told.log.append_text("one")

    assert not told.wake.is_set()
    frame = told.frames.take()
    assert frame == ConverseResponse(
        turn_event=TurnEvent(
            turn_id="t1", epoch=1, first_sequence=2, sequence=2, delta=frame.turn_event.delta
        )
    )
    assert frame.turn_event.delta.text == "one"
    assert not told.reader.has_news


async def test_what_comes_while_a_message_is_written_goes_out_behind_it_as_one():
    told = await waiting()

    for text in ("one", " two", " three"):
        told.log.append_text(text)
    assert told.take() == "one"
    await asyncio.wait_for(told.frames.arrive(), 60)

    assert told.take() == " two three"
    assert not told.wake.is_set()


async def test_all_is_the_tasks_while_it_does_not_wait():
    told = Told()
    told.wake.clear()

    told.log.append_text("one")

    assert told.wake.is_set()
    assert told.take() is None


async def test_output_behind_what_woke_the_task_is_the_tasks_too():
    told = await waiting()
    told.wake.set()

    told.log.append_text("one")

    assert told.take() is None
    assert told.reader.has_news


async def test_news_that_are_no_output_are_the_tasks_behind_the_output():
    told = await waiting()

    told.log.append_text("one")
    told.log.append(TurnEvent(completed={}))
    assert not told.wake.is_set()
    assert told.take() == "one"
    assert told.task is not None
    await asyncio.wait_for(told.task, 60)

    assert told.reader.read().HasField("completed")


async def test_task_waits_for_the_message_that_is_being_written():
    told = await waiting()
    assert told.task is not None
    told.log.append_text("one")
    told.wake.set()
    await asyncio.sleep(0.01)
    assert not told.task.done()

    told.take()

    await asyncio.wait_for(told.task, 60)


async def test_news_of_another_reader_are_the_tasks_while_a_message_is_written():
    told = await waiting()
    other = EventLog("t2", 1)
    reader = other.open_reader(told.wake, take_news=told.telling.tell)
    told.log.append_text("one")

    other.append_text("other")

    assert told.wake.is_set()
    assert reader.has_news


async def test_caller_that_is_behind_with_acknowledgements_is_told_nothing_more():
    told = await waiting(most_unacked=1)

    told.log.append_text("one")
    told.log.append_text(" two")
    assert told.take() == "one"
    await asyncio.sleep(0.01)

    assert told.wake.is_set()
    assert told.take() is None
    assert told.acks.full


async def test_caller_whose_credential_was_taken_back_is_told_nothing_more():
    told = await waiting()
    told.refusal = bad_credential()

    told.log.append_text("one")

    assert told.wake.is_set()
    assert told.take() is None


async def test_stream_that_is_closed_tells_nothing_more_behind_a_write():
    told = await waiting(most_unacked=4)
    raised: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: raised.append(context))
    told.log.append_text("one")
    told.log.append_text(" two")

    told.telling.close()
    told.acks.close()
    assert told.take() == "one"
    await asyncio.sleep(0.01)

    assert told.take() is None
    assert not raised


@pytest.mark.parametrize("takes", [True, False])
async def test_reader_is_away_that_takes_no_direct_write(takes: bool):
    told = await waiting()
    told.watch.start()

    told.log.append_text("one")
    if takes:
        told.take()
    await asyncio.sleep(3 * GRACE_S)
    told.watch.close()

    assert told.num_aways == (0 if takes else 1)


async def test_stream_tells_a_turn_whole_by_its_task_and_direct_writes(spec: BenchSpec):
    paced = replace(spec, engine=lambda: FakeEngine(step_interval_s=0.002))
    async with session_bench(paced) as bench:
        await bench.create()
        talk = bench.converse(open_frame(), generate_frame("one", "t1", max_tokens=40))

        frames = await talk.until(ends("t1"))

        events = turn_events(frames, "t1")
        assert text_of(events) == (await bench.turn("t1")).output.text
        assert talk.direct.num_taken > 0
