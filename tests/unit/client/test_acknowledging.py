"""What a session acknowledges: what was read, and what nobody is going to read."""

import asyncio
from contextlib import asynccontextmanager

import grpc
import pytest
from antiphon.v1 import session_pb2, types_pb2
from google.rpc import error_details_pb2

from antiphon_client import Client, ClientOptions
from support.breaking_sessions import Break, BreakingSessions
from support.scripted_services import refuse, serving
from support.scripted_sessions import Conversing, completed

NUM_PIECES = 40


def numbered(turn_id, epoch):
    return [f"{number} " for number in range(NUM_PIECES)]


@asynccontextmanager
async def talking(servicer, max_unacked_events=8):
    options = ClientOptions(max_unacked_events=max_unacked_events)
    serves = serving(sessions=servicer)
    async with serves as target, Client(target, options) as client, client.new_session() as session:
        yield session


def acks(servicer):
    return [frame.ack for frame in servicer.frames if frame.HasField("ack")]


async def test_what_is_read_is_acknowledged_in_batches_and_the_end_at_once():
    servicer = BreakingSessions(numbered)
    async with talking(servicer) as session:
        await (await session.send("count", turn_id="t")).answer()
        await servicer.until(
            lambda: acks(servicer) and acks(servicer)[-1].sequence == NUM_PIECES + 3
        )

    sequences = [ack.sequence for ack in acks(servicer)]
    assert servicer.openings[0].max_unacked_events == 8
    assert sequences == sorted(set(sequences))
    assert {(ack.turn_id, ack.epoch) for ack in acks(servicer)} == {("t", 1)}
    assert len(sequences) < NUM_PIECES


class Windowed(BreakingSessions):
    """Holds back what is more than a few events behind the last acknowledgement."""

    window = 8

    def __init__(self, answer, breaks=()):
        super().__init__(answer, breaks)
        self.num_ahead = 0

    async def _tell(self, stream):
        num_told = 0
        async for response in super()._tell(stream):
            is_event = response.HasField("turn_event") and response.turn_event.sequence > 0
            if is_event:
                await self.until(lambda so_far=num_told: self.ahead(so_far) < self.window)
            num_told += is_event
            self.num_ahead = max(self.num_ahead, self.ahead(num_told))
            yield response

    def ahead(self, num_told):
        heard = [ack for ack in acks(self) if ack.epoch == self.epoch]
        return num_told - sum(
            max(ack.sequence for ack in heard if ack.turn_id == turn_id)
            for turn_id in {ack.turn_id for ack in heard}
        )


async def test_the_server_is_never_further_ahead_of_the_reader_than_it_may_be():
    servicer = Windowed(numbered)
    async with talking(servicer) as session:
        turn = await session.send("count", turn_id="t")
        events = aiter(turn)
        assert (await anext(events)).HasField("accepted")
        await asyncio.sleep(0.05)
        assert max((ack.sequence for ack in acks(servicer)), default=0) <= 1 + servicer.window
        rest = [event async for event in events]

    assert len(rest) == NUM_PIECES + 2
    assert servicer.num_ahead <= servicer.window


async def test_what_is_told_again_is_acknowledged_although_it_is_no_news():
    servicer = Windowed(numbered, [Break(behind=30, crashes=True)] * 2)
    async with talking(servicer) as session:
        turn = await session.send("count", turn_id="t")
        assert await turn.answer() == "".join(numbered("t", 1))

    assert len(servicer.openings) == servicer.epoch == 3


async def test_what_is_told_again_while_the_reader_is_slow_is_acknowledged_once_he_reads_on():
    servicer = Windowed(numbered, [Break(behind=12, crashes=True)])
    async with talking(servicer) as session:
        turn = await session.send("count", turn_id="t")
        read = [(await anext(turn)).delta.text for _ in range(4)]
        await servicer.until(lambda: len(servicer.openings) == 2)
        await asyncio.sleep(0.05)
        assert "".join(read) + await turn.answer() == "".join(numbered("t", 1))

    assert len(servicer.openings) == 2


async def test_a_turn_that_nobody_reads_does_not_hold_the_others_back():
    servicer = Windowed(numbered)
    async with talking(servicer) as session:
        ignored = [await session.send("count", turn_id=f"ignored-{i}") for i in range(5)]
        read = await session.send("count", turn_id="read")
        answer = await read.answer()

        assert answer == "".join(numbered("read", 1))
        assert [await turn.answer() for turn in ignored] == [answer] * 5


async def test_events_of_turns_that_others_started_are_acknowledged():
    async def others(frame, context):
        for number in range(1, 4):
            yield session_pb2.ConverseResponse(
                turn_event=session_pb2.TurnEvent(
                    turn_id="foreign",
                    epoch=1,
                    first_sequence=number,
                    sequence=number,
                    delta=types_pb2.Delta(text="not mine"),
                )
            )
        yield completed(frame.generate.turn_id)

    servicer = Conversing(others)
    async with talking(servicer) as session:
        await (await session.send("x")).answer()
    await servicer.half_closed.wait()

    assert acks(servicer)[0].turn_id == "foreign"


async def test_a_client_that_says_so_never_acknowledges():
    servicer = BreakingSessions(numbered)
    async with talking(servicer, max_unacked_events=0) as session:
        await (await session.send("count")).answer()

    assert servicer.openings[0].max_unacked_events == 0
    assert acks(servicer) == []


async def test_what_was_read_is_acknowledged_before_the_next_frame_that_may_interrupt():
    servicer = BreakingSessions(numbered)
    async with talking(servicer, max_unacked_events=4096) as session:
        turn = await session.send("count", turn_id="t")
        events = aiter(turn)
        kinds = [(await anext(events)).WhichOneof("event") for _ in range(5)]
        await (await session.interrupt("no")).answer()

    frames = [frame.WhichOneof("frame") for frame in servicer.frames]
    assert kinds[-1] == "delta"
    assert frames[:4] == ["open", "generate", "ack", "generate"]
    assert servicer.frames[3].generate.if_busy == session_pb2.StartTurn.IF_BUSY_INTERRUPT


@pytest.mark.parametrize("behind", [5, 20])
async def test_acknowledging_goes_on_behind_a_break(behind):
    servicer = BreakingSessions(numbered, [Break(behind=behind)])
    async with talking(servicer) as session:
        turn = await session.send("count", turn_id="t")
        assert await turn.answer() == "".join(numbered("t", 1))
        await servicer.until(
            lambda: acks(servicer) and acks(servicer)[-1].sequence == NUM_PIECES + 3
        )


class Impatient(BreakingSessions):
    """Gives its first stream up once two events were not acknowledged."""

    async def _break(self, stream, context):
        info = error_details_pb2.ErrorInfo(reason="SLOW_CONSUMER")
        await refuse(context, grpc.StatusCode.RESOURCE_EXHAUSTED, "not read", info)


def acknowledged_before_reopening(servicer):
    """Returns how far the first stream was acknowledged."""
    kinds = [frame.WhichOneof("frame") for frame in servicer.frames]
    of_first = servicer.frames[: kinds.index("open", 1)]
    return max((frame.ack.sequence for frame in of_first), default=0)


async def test_a_stream_that_was_lost_for_slow_reading_is_opened_again_by_reading_on():
    servicer = Impatient(numbered, [Break(behind=6)])
    async with talking(servicer) as session:
        turn = await session.send("count", turn_id="t")
        async with asyncio.timeout(60):
            while session.attached:  # noqa: ASYNC110 - has no event
                await asyncio.sleep(0)
        num_before = len(servicer.openings)
        answer = await turn.answer()

    assert num_before == 1, "nobody reads, so there is nothing to open another for"
    assert answer == "".join(numbered("t", 1))
    # An acknowledgement written while its stream ends may cost what was not read from it yet.
    assert acknowledged_before_reopening(servicer) <= servicer.openings[1].resume[0].sequence <= 5
