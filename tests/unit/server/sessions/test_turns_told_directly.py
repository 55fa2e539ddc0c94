"""Calls that tell of one turn: its output is written where it comes about."""

import asyncio
import time
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from antiphon.v1.session_pb2 import TurnAccepted, TurnCompleted, TurnCursor, TurnEvent

from antiphon_engine.api.errors import AntiphonError, ErrorReason
from antiphon_server.call_writer import CallWriter
from antiphon_server.services.reader_watch import Grace
from antiphon_server.services.turn_events import TurnEvents
from antiphon_server.sessions.event_log import EventLog, ReaderSpec
from support.direct_frames import DirectFrames


class Call:
    """A turn's log, and a call that tells of it."""

    def __init__(self, spec: ReaderSpec, *, grace_s: float = 60.0) -> None:
        self.frames = DirectFrames()
        self.left: list[str] = []
        self.is_left = asyncio.Event()
        self.log = EventLog("t1", 1)
        self.log.append(TurnEvent(accepted=TurnAccepted()))
        self.told = TurnEvents(
            self,
            self.log,
            spec,
            grace=Grace(grace_s=grace_s, clock_ns=time.monotonic_ns),
            writer=CallWriter(self.frames, lambda: None),
        )
        self.events = self.told.events()

    def note_leaving(self, turn_id: str) -> None:
        """As a session does."""
        self.left.append(turn_id)
        self.is_left.set()

    async def begin_to_read(self) -> "asyncio.Task[TurnEvent]":
        """Has the call's task wait for what it is to tell next."""
        reading = asyncio.ensure_future(anext(self.events))
        for _ in range(3):
            await asyncio.sleep(0)
        return reading


@pytest_asyncio.fixture
async def call() -> AsyncIterator[Call]:
    made = Call(ReaderSpec(drives=True))
    yield made
    made.told.close()
    await made.events.aclose()


async def test_output_is_written_beside_the_task_and_its_end_by_it(call: Call):
    accepted = await anext(call.events)
    reading = await call.begin_to_read()

    call.log.append_text("one")
    call.log.append_text(" two")
    first = call.frames.take()
    await asyncio.wait_for(call.frames.arrive(), 10)
    second = call.frames.take()
    call.log.append(TurnEvent(completed=TurnCompleted()))
    last = await asyncio.wait_for(reading, 10)

    assert accepted.HasField("accepted")
    assert [each.delta.text for each in (first, second)] == ["one", " two"]
    assert [each.sequence for each in (first, second, last)] == [2, 3, 4]
    assert last.HasField("completed")
    assert call.frames.take() is None


async def test_first_message_is_the_tasks_own():
    cursor = TurnCursor(turn_id="t1", epoch=1, sequence=1)
    call = Call(ReaderSpec(cursor=cursor))
    reading = await call.begin_to_read()

    call.log.append_text("one")

    assert (await asyncio.wait_for(reading, 10)).delta.text == "one"
    assert call.frames.take() is None
    call.told.close()
    await call.events.aclose()


async def test_caller_that_takes_nothing_of_what_is_written_beside_loses_the_call():
    call = Call(ReaderSpec(drives=True), grace_s=0.02)
    await anext(call.events)
    reading = await call.begin_to_read()
    call.log.append_text("one")

    await asyncio.wait_for(call.is_left.wait(), 10)
    told_before = reading.done()
    call.frames.take()

    assert not told_before
    with pytest.raises(AntiphonError) as raised:
        await asyncio.wait_for(reading, 10)
    assert raised.value.reason is ErrorReason.SLOW_CONSUMER
    assert call.left == ["t1"]
