"""A session over streams that break: every turn runs once and is read once."""

import asyncio
from contextlib import asynccontextmanager

import grpc
import pytest
from antiphon.v1 import session_pb2, session_pb2_grpc, types_pb2
from google.protobuf import duration_pb2
from google.rpc import error_details_pb2

from antiphon_client import (
    Aborted,
    Client,
    ClientOptions,
    NotFound,
    Overloaded,
    RetryPolicy,
    SessionAttached,
    TurnNotFound,
    TurnRestarted,
    Unavailable,
    user,
)
from support.breaking_sessions import Break, BreakingSessions
from support.scripted_services import refuse, serving
from support.scripted_sessions import Conversing, completed, delta, echo

QUICK = ClientOptions(
    reconnect=RetryPolicy(first_delay_s=0.005, max_delay_s=0.02), reconnect_timeout_s=60
)
WORDS = ("one ", "two ", "three ", "four")
# opened, accepted, started, four pieces, completed
NUM_FRAMES = 8


def says(*pieces):
    """Answers every turn with these pieces."""
    return lambda turn_id, epoch: pieces


@asynccontextmanager
async def talking(servicer, options=QUICK, **opening):
    serves = serving(sessions=servicer)
    async with serves as target, Client(target, options) as client:
        session = client.new_session(**opening)
        async with session:
            yield session


@pytest.mark.parametrize("crashes", [False, True], ids=["cut", "crashed"])
@pytest.mark.parametrize("behind", range(1, NUM_FRAMES))
async def test_a_stream_that_breaks_anywhere_leaves_every_piece_once(behind, crashes):
    servicer = BreakingSessions(says(*WORDS), [Break(behind=behind, crashes=crashes)] * 2)

    async with talking(servicer) as session:
        turn = await session.send("count", turn_id="t")
        pieces = [piece async for piece in turn.text()]

    assert pieces == list(WORDS)
    assert turn.completed is not None
    assert servicer.num_runs == {"t": 1}


async def test_a_frame_that_was_lost_with_its_stream_is_sent_again_and_its_turn_runs_once():
    servicer = BreakingSessions(says(*WORDS), [Break(behind=99, loses_frames=True)] * 2)

    async with talking(servicer) as session:
        turn = await session.send("count", turn_id="t")
        assert await turn.answer() == "one two three four"

    sent = [frame.generate for frame in servicer.frames if frame.HasField("generate")]
    assert len(sent) == 3
    assert sent[0] == sent[1] == sent[2]
    assert servicer.num_runs == {"t": 1}


async def test_the_next_stream_names_the_session_its_attachment_and_the_place_in_the_turn():
    servicer = BreakingSessions(says(*WORDS), [Break(behind=4)])

    async with talking(servicer) as session:
        await (await session.send("count", turn_id="t")).answer()

    first, second = servicer.openings
    assert first.HasField("create")
    assert second.name == "sessions/s"
    assert first.attachment_id == second.attachment_id != ""
    assert not second.take_over
    cursor = session_pb2.TurnCursor(turn_id="t", epoch=1, sequence=3)
    assert list(second.resume) == [cursor]


async def test_turns_that_wait_behind_another_survive_with_it_and_keep_their_order():
    servicer = BreakingSessions(says(*WORDS), [Break(behind=2), Break(behind=3), Break(behind=9)])

    async with talking(servicer) as session:
        turns = [await session.send("count", turn_id=f"t{i}") for i in range(3)]
        answers = [await turn.answer() for turn in turns]

    assert answers == ["one two three four"] * 3
    assert servicer.num_runs == {"t0": 1, "t1": 1, "t2": 1}


async def test_an_answer_that_is_another_after_a_crash_is_told_to_the_reader():
    answers = {1: ("Good ", "day, ", "Ada"), 2: ("Good ", "dawn, ", "Bob")}
    servicer = BreakingSessions(lambda _, epoch: answers[epoch], [Break(behind=5, crashes=True)])

    async with talking(servicer) as session:
        turn = await session.send("greet", turn_id="t")
        read = [await anext(turn.text()), await anext(turn.text())]
        with pytest.raises(TurnRestarted) as caught:
            await anext(turn.text())
        rest = [piece async for piece in turn.text()]

    assert "".join(read) == "Good day, "
    assert caught.value.kept_text == "Good da"
    assert caught.value.kept_text + "".join(rest) == "Good dawn, Bob"


async def test_an_answer_that_is_read_in_one_piece_is_the_one_that_holds():
    answers = {1: ("Good ", "day"), 2: ("Go",)}
    servicer = BreakingSessions(lambda _, epoch: answers[epoch], [Break(behind=5, crashes=True)])

    async with talking(servicer) as session:
        assert await (await session.send("greet")).answer() == "Go"


async def test_a_server_that_is_gone_for_a_while_is_waited_for():
    class Away(BreakingSessions):
        num_refusals = 0

        async def Converse(self, request_iterator, context):
            if self.openings and self.num_refusals < 5:
                self.num_refusals += 1
                await context.abort(grpc.StatusCode.UNAVAILABLE, "connection refused")
            async for response in super().Converse(request_iterator, context):
                yield response

    seen = []
    servicer = Away(says(*WORDS), [Break(behind=5)])
    async with talking(servicer, watcher=seen.append) as session:
        assert await (await session.send("count")).answer() == "one two three four"

    assert servicer.num_refusals == 5
    assert [type(each).__name__ for each in seen] == ["EngineDown", "NoneType"]


async def test_each_interruption_and_its_end_are_told_once():
    seen = []
    servicer = BreakingSessions(says(*WORDS), [Break(behind=5), Break(behind=2)])
    async with talking(servicer, watcher=seen.append) as session:
        assert await (await session.send("count")).answer() == "one two three four"

    assert [type(each).__name__ for each in seen] == ["EngineDown", "NoneType"] * 2


async def test_a_server_that_stays_away_fails_the_turns_that_ran_and_those_sent_later():
    async def break_off(frame, context):
        yield delta("t", "begin")
        await refuse(
            context,
            grpc.StatusCode.UNAVAILABLE,
            "shutting down",
            error_details_pb2.ErrorInfo(reason="DRAINING"),
        )

    options = ClientOptions(reconnect_timeout_s=0)
    async with talking(Conversing(break_off), options) as session:
        turn = await session.send("x", turn_id="t")
        with pytest.raises(Unavailable, match="shutting down"):
            await turn.answer()

        assert not session.attached
        with pytest.raises(Unavailable, match="shutting down"):
            await session.send("y")
        assert session.ended is not None


async def test_a_session_that_another_took_meanwhile_is_left_to_it():
    class Taken(BreakingSessions):
        async def Converse(self, request_iterator, context):
            if self.openings:
                info = error_details_pb2.ErrorInfo(reason="SESSION_ATTACHED")
                await refuse(context, grpc.StatusCode.FAILED_PRECONDITION, "taken", info)
            async for response in super().Converse(request_iterator, context):
                yield response

    async with talking(Taken(says(*WORDS), [Break(behind=5)])) as session:
        turn = await session.send("count")
        with pytest.raises(SessionAttached):
            await turn.answer()


async def test_a_turn_that_a_server_does_not_know_any_more_fails_alone():
    class Forgetful(BreakingSessions):
        async def Converse(self, request_iterator, context):
            opening = await anext(request_iterator)
            if opening.open.resume and opening.open.resume[0].turn_id == "lost":
                info = error_details_pb2.ErrorInfo(
                    reason="TURN_NOT_FOUND", metadata={"turn": "sessions/s/turns/lost"}
                )
                await refuse(context, grpc.StatusCode.NOT_FOUND, "there is no turn", info)

            async def frames():
                yield opening
                async for frame in request_iterator:
                    yield frame

            async for response in super().Converse(frames(), context):
                yield response

    async with talking(Forgetful(says(*WORDS), [Break(behind=6)])) as session:
        lost = await session.send("count", turn_id="lost")
        kept = await session.send("count", turn_id="kept")
        with pytest.raises(TurnNotFound):
            await lost.answer()
        assert await kept.answer() == "one two three four"


def going_away(reason, end=None):
    """Reacts to the first turn with a piece and the coming end of the stream."""

    async def react(frame, context):
        go_away = types_pb2.GoAway(reason=reason)
        yield session_pb2.ConverseResponse(go_away=go_away)
        yield completed(frame.generate.turn_id)
        if end is not None:
            await context.abort(end, "gone")

    return react


@pytest.mark.parametrize(
    ("reason", "end", "error"),
    [
        (types_pb2.GoAway.REASON_TAKEN_OVER, grpc.StatusCode.ABORTED, Aborted),
        (types_pb2.GoAway.REASON_SESSION_GONE, grpc.StatusCode.NOT_FOUND, NotFound),
        (types_pb2.GoAway.REASON_TAKEN_OVER, grpc.StatusCode.UNAVAILABLE, Unavailable),
    ],
)
async def test_a_session_that_was_taken_over_or_is_gone_is_not_opened_again(reason, end, error):
    servicer = Conversing(going_away(reason, end))
    async with talking(servicer) as session:
        await (await session.send("x")).answer()
        await asyncio.wait_for(servicer.ended.wait(), 60)
        with pytest.raises(error):
            await (await session.send("y")).answer()

    assert sum(frame.HasField("open") for frame in servicer.frames) == 1


@pytest.mark.parametrize("reason", ["REASON_MAX_AGE", "REASON_DRAINING"])
async def test_a_stream_that_is_asked_to_end_ends_well_and_another_goes_on(reason):
    class Aging(Conversing):
        num_streams = 0

        async def Converse(self, request_iterator, context):
            self.num_streams += 1
            value = types_pb2.GoAway.Reason.Value(reason)
            self.react = going_away(value) if self.num_streams == 1 else echo
            async for response in super().Converse(request_iterator, context):
                yield response

    seen = []
    servicer = Aging()
    async with talking(servicer, watcher=seen.append) as session:
        await (await session.send("x")).answer()
        assert await (await session.send("on another")).answer() == "onanother"
        assert session.go_away is None

    kinds = [frame.WhichOneof("frame") for frame in servicer.frames]
    assert [kind for kind in kinds if kind != "ack"] == ["open", "generate", "open", "generate"]
    assert servicer.half_closed.is_set()
    assert seen == [], "nothing was interrupted"


async def test_a_turn_that_a_leaving_server_refuses_is_started_on_the_next_stream():
    class Leaving(Conversing):
        num_streams = 0

        async def Converse(self, request_iterator, context):
            self.num_streams += 1
            self.react = refuse_all if self.num_streams == 1 else echo
            async for response in super().Converse(request_iterator, context):
                yield response

    async def refuse_all(frame, context):
        failure = types_pb2.Failure(code=14, reason="DRAINING")
        rejected = session_pb2.FrameRejected(frame_id=frame.frame_id, failure=failure)
        yield session_pb2.ConverseResponse(rejected=rejected)

    servicer = Leaving()
    async with talking(servicer) as session:
        turn = await session.send("all the same")
        assert await turn.answer() == "allthesame"

    assert servicer.num_streams == 2


async def test_a_refused_turn_tells_when_to_come_back_and_the_session_goes_on():
    async def overloaded(frame, context):
        failure = types_pb2.Failure(
            code=14, reason="OVERLOADED", retry_delay=duration_pb2.Duration(seconds=2)
        )
        rejected = session_pb2.FrameRejected(frame_id=frame.frame_id, failure=failure)
        yield session_pb2.ConverseResponse(rejected=rejected)

    async with talking(Conversing(overloaded)) as session:
        with pytest.raises(Overloaded) as caught:
            await (await session.send("x")).answer()
        assert session.attached

    assert caught.value.retry_delay_s == 2


async def test_a_cancellation_is_repeated_on_the_next_stream_until_the_turn_has_ended():
    class Forgetful(Conversing):
        num_cancels = 0

    async def react(frame, context):
        if frame.HasField("generate"):
            yield delta("t", "begin")
        elif frame.HasField("cancel"):
            servicer.num_cancels += 1
            if servicer.num_cancels == 1:
                await context.abort(grpc.StatusCode.UNAVAILABLE, "lost")
            yield completed("t", types_pb2.FINISH_REASON_CANCELLED)

    servicer = Forgetful(react)
    async with talking(servicer) as session:
        turn = await session.send("x", turn_id="t")
        assert await anext(turn.text()) == "begin"
        await turn.cancel()
        assert await turn.answer() == ""

    kinds = [frame.WhichOneof("frame") for frame in servicer.frames]
    assert [k for k in kinds if k != "ack"] == ["open", "generate", "cancel", "open", "cancel"]


class RunningTurns(session_pb2_grpc.SessionServiceServicer):
    """Runs a turn over calls that each break behind two events."""

    def __init__(self):
        self.calls = []

    def events(self, after, turn_id):
        servicer = BreakingSessions(says(*WORDS))
        servicer._start(_Nowhere(), turn_id)
        events = servicer._turns[turn_id].events
        for number in range(after + 1, len(events) + 1):
            event = session_pb2.TurnEvent()
            event.CopyFrom(events[number - 1])
            event.epoch, event.first_sequence, event.sequence = 1, number, number
            yield event

    async def RunTurn(self, request, context):
        self.calls.append(request)
        if len(self.calls) == 1:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "lost at once")
        for event in list(self.events(0, request.turn.turn_id))[:2]:
            yield event
        await context.abort(grpc.StatusCode.UNAVAILABLE, "lost")

    async def StreamTurnEvents(self, request, context):
        self.calls.append(request)
        left = list(self.events(request.after_sequence, "t"))
        for event in left[:2]:
            yield event
        if len(left) > 2:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "lost")


class _Nowhere:
    def __init__(self):
        self.readers = []


async def test_a_turn_without_a_stream_is_followed_over_calls_that_break():
    servicer = RunningTurns()
    async with serving(sessions=servicer) as target, Client(target, QUICK) as client:
        turn = session_pb2.StartTurn(turn_id="t", items=[user("count")])
        running = client.sessions.run_turn("sessions/s", turn)
        pieces = [piece async for piece in running.text()]

    assert pieces == list(WORDS)
    assert [type(call).__name__ for call in servicer.calls] == [
        *["RunTurnRequest"] * 2,
        *["StreamTurnEventsRequest"] * 3,
    ]
    assert [call.after_sequence for call in servicer.calls[2:]] == [2, 4, 6]


async def test_a_turns_events_are_followed_from_a_cursor():
    servicer = RunningTurns()
    async with serving(sessions=servicer) as target, Client(target, QUICK) as client:
        cursor = session_pb2.TurnCursor(epoch=1, sequence=3)
        turn = client.sessions.stream_turn_events("sessions/s/turns/t", cursor)
        assert await turn.answer() == "two three four"

    assert turn.cursor.sequence == 7
