import asyncio
from contextlib import asynccontextmanager

import grpc
import pytest
from antiphon.v1 import session_pb2, session_pb2_grpc, types_pb2
from google.rpc import error_details_pb2

from antiphon_client import (
    Client,
    ClientOptions,
    DeadlineExceeded,
    FailedPrecondition,
    InternalError,
    NotFound,
    ServerError,
    user,
)
from support.scripted_services import refuse, serving
from support.scripted_sessions import Conversing, completed, delta, echo, event

Response = session_pb2.ConverseResponse


@asynccontextmanager
async def talking(servicer, *, resume=None):
    """Yields a session with this servicer, new or resumed."""
    async with serving(sessions=servicer) as target, Client(target) as client:
        session = client.resume_session(resume) if resume else client.new_session()
        async with session:
            yield session


async def test_a_turn_is_read_as_text():
    servicer = Conversing(echo)
    async with talking(servicer) as session:
        turn = await session.send("one two")
        pieces = [piece async for piece in turn.text()]

    assert session.name == "sessions/s"
    assert pieces == ["one", "two"]
    assert turn.started.prompt_tokens == 3
    assert turn.completed.finish_reason == types_pb2.FINISH_REASON_STOP


async def test_the_first_frame_opens_and_the_next_start_turns_with_ids():
    servicer = Conversing(echo)
    async with talking(servicer, resume="sessions/s") as session:
        await (await session.send("one", timeout_s=1.5)).answer()
        await (await session.send("two", turn_id="mine")).answer()

    opening, first, second = servicer.frames
    assert opening.open.name == "sessions/s"
    assert first.generate.items == [user("one")]
    assert first.generate.timeout.ToTimedelta().total_seconds() == 1.5
    assert first.generate.turn_id == first.frame_id != ""
    assert second.generate.turn_id == "mine"


async def test_a_new_session_is_created_with_settings_items_and_a_request_id():
    servicer = Conversing()
    settings = session_pb2.Session(instructions="be brief")
    async with serving(sessions=servicer) as target, Client(target) as client:
        session = client.new_session(settings, session_id="s", items="hello")
        await session.open()

    create = servicer.frames[0].open.create
    assert (create.session, create.session_id) == (settings, "s")
    assert list(create.items) == [user("hello")]
    assert len(create.request_id) == 36


async def test_turns_that_run_together_are_told_apart_whatever_order_they_are_read_in():
    async def both_at_the_second(frame, context):
        if frame.generate.turn_id == "b":
            yield delta("a", "A1")
            yield delta("b", "B1")
            yield delta("a", "A2")
            yield completed("a")
            yield completed("b")

    async with talking(Conversing(both_at_the_second)) as session:
        first = await session.send("x", turn_id="a")
        second = await session.send("y", turn_id="b")

        assert await second.answer() == "B1"
        assert await first.answer() == "A1A2"


async def test_a_failed_turn_raises_and_the_session_goes_on():
    async def fail_once(frame, context):
        if frame.generate.turn_id == "bad":
            failure = types_pb2.Failure(code=13, reason="INTERNAL", message="broke")
            yield delta("bad", "part")
            yield event("bad", failed=failure)
        else:
            async for response in echo(frame, context):
                yield response

    async with talking(Conversing(fail_once)) as session:
        bad = await session.send("x", turn_id="bad")
        pieces = bad.text()
        first = await anext(pieces)
        with pytest.raises(InternalError, match="broke"):
            await anext(pieces)

        good = await session.send("fine")
        assert await good.answer() == "fine"

    assert first == "part"


async def test_a_rejected_turn_raises_what_the_rejection_says():
    async def reject(frame, context):
        failure = types_pb2.Failure(code=9, reason="SESSION_BUSY", metadata={"turn": "t"})
        yield Response(rejected=session_pb2.FrameRejected(frame_id=frame.frame_id, failure=failure))

    async with talking(Conversing(reject)) as session:
        turn = await session.send("x")
        with pytest.raises(FailedPrecondition) as caught:
            await turn.answer()

    assert (caught.value.reason, caught.value.metadata) == ("SESSION_BUSY", {"turn": "t"})


async def test_cancelling_asks_the_server_and_the_turn_tells_its_end():
    async def until_cancelled(frame, context):
        if frame.HasField("generate"):
            yield delta("t", "begin")
        else:
            ended = session_pb2.TurnCompleted(finish_reason=types_pb2.FINISH_REASON_CANCELLED)
            yield event("t", completed=ended)

    servicer = Conversing(until_cancelled)
    async with talking(servicer) as session:
        turn = await session.send("x", turn_id="t")
        assert await anext(turn.text()) == "begin"
        await turn.cancel(discard_partial=True)
        rest = await turn.answer()
        await turn.cancel()

    assert rest == ""
    assert turn.completed.finish_reason == types_pb2.FINISH_REASON_CANCELLED
    assert servicer.frames[2].cancel == session_pb2.CancelRequest(turn_id="t", discard_partial=True)
    assert len(servicer.frames) == 3, "a turn that has ended needs no cancellation"


async def test_a_refused_cancellation_leaves_the_turn_to_its_end():
    async def refuse_cancel(frame, context):
        if frame.HasField("cancel"):
            failure = types_pb2.Failure(code=5, reason="TURN_NOT_FOUND")
            yield Response(
                rejected=session_pb2.FrameRejected(
                    frame_id=frame.frame_id, turn_id="t", failure=failure
                )
            )
            yield delta("t", "all the same")
            yield completed("t")

    async with talking(Conversing(refuse_cancel)) as session:
        turn = await session.send("x", turn_id="t")
        await turn.cancel()

        assert await turn.answer() == "all the same"


async def test_items_are_appended_without_an_answer():
    async def accept(frame, context):
        yield completed(frame.append.turn_id)

    servicer = Conversing(accept)
    async with talking(servicer) as session:
        turn = await session.append([user("a"), user("b")])
        assert await turn.answer() == ""

    assert list(servicer.frames[1].append.items) == [user("a"), user("b")]


async def test_a_refused_opening_raises_its_status():
    class Refusing(session_pb2_grpc.SessionServiceServicer):
        async def Converse(self, request_iterator, context):
            await anext(request_iterator)
            await refuse(
                context,
                grpc.StatusCode.NOT_FOUND,
                "gone",
                error_details_pb2.ErrorInfo(reason="SESSION_EXPIRED"),
            )
            yield

    async with serving(sessions=Refusing()) as target, Client(target) as client:
        with pytest.raises(NotFound) as caught:
            await client.resume_session("sessions/s").open()

    assert caught.value.reason == "SESSION_EXPIRED"


async def test_an_opening_without_an_answer_ends_at_the_time_limit():
    options = ClientOptions(timeout_s=0.1)
    silent = serving(sessions=Conversing(opened=False))
    async with silent as target, Client(target, options) as client:
        with pytest.raises(DeadlineExceeded):
            await client.new_session().open()


async def test_events_and_frames_of_kinds_unknown_to_this_client_are_skipped():
    async def with_news(frame, context):
        turn_id = frame.generate.turn_id
        yield Response()
        yield event(turn_id)
        yield event("somebody-else", delta=types_pb2.Delta(text="not mine"))
        yield completed(turn_id)

    async with talking(Conversing(with_news)) as session:
        turn = await session.send("x")
        kinds = [e.WhichOneof("event") async for e in turn]

    assert kinds == ["completed"]


async def test_changes_and_a_coming_end_are_noticed():
    async def change(frame, context):
        changed = session_pb2.Session(name="sessions/s", etag="2")
        yield Response(changed=session_pb2.SessionChanged(session=changed))
        yield Response(go_away=types_pb2.GoAway(reason=types_pb2.GoAway.REASON_DRAINING))
        yield completed(frame.generate.turn_id)

    async with talking(Conversing(change)) as session:
        await (await session.send("x")).answer()

    assert session.info.etag == "2"
    assert session.go_away.reason == types_pb2.GoAway.REASON_DRAINING


async def test_closing_half_closes_and_waits_for_what_runs():
    async def slow(frame, context):
        await asyncio.sleep(0.1)
        yield delta("t", "late")
        yield completed("t")

    servicer = Conversing(slow)
    async with serving(sessions=servicer) as target, Client(target) as client:
        session = client.new_session()
        await session.open()
        turn = await session.send("x", turn_id="t")
        await session.close()
        await session.close()

        assert servicer.half_closed.is_set()
        assert await turn.answer() == "late"


async def test_closing_gives_up_on_turns_that_do_not_end():
    async def never(frame, context):
        await asyncio.sleep(60)
        yield

    servicer = Conversing(never)
    options = ClientOptions(close_timeout_s=0.1)
    async with serving(sessions=servicer) as target, Client(target, options) as client:
        async with client.new_session() as session:
            turn = await session.send("x")

        with pytest.raises(ServerError):
            await turn.answer()
        await asyncio.wait_for(servicer.ended.wait(), 60)


async def test_a_session_that_is_closed_while_it_opens_lets_go_of_its_stream():
    class Slow(Conversing):
        let_in = asyncio.Event()

        async def Converse(self, request_iterator, context):
            await self.let_in.wait()
            async for response in super().Converse(request_iterator, context):
                yield response

    servicer = Slow(echo)
    async with serving(sessions=servicer) as target, Client(target) as client:
        session = client.new_session()
        opening = asyncio.create_task(session.open())
        await asyncio.sleep(0)
        await session.close()
        servicer.let_in.set()
        with pytest.raises(ServerError, match="has ended"):
            await opening
        await asyncio.wait_for(servicer.ended.wait(), 60)


async def test_a_closing_that_is_cancelled_ends_the_stream_all_the_same():
    async def never(frame, context):
        await asyncio.sleep(60)
        yield

    servicer = Conversing(never)
    async with serving(sessions=servicer) as target, Client(target) as client:
        session = client.new_session()
        await session.open()
        turn = await session.send("x")
        closing = asyncio.create_task(session.close())
        await asyncio.sleep(0)
        closing.cancel()
        await asyncio.wait([closing])

        assert session.ended is not None
        with pytest.raises(ServerError):
            await turn.answer()
        await asyncio.wait_for(servicer.ended.wait(), 60)


class Running(session_pb2_grpc.SessionServiceServicer):
    """Runs turns and cancels them, both without a stream."""

    def __init__(self):
        self.cancelled = asyncio.Event()

    async def RunTurn(self, request, context):
        turn_id = request.turn.turn_id
        yield delta(turn_id, "begin").turn_event
        await self.cancelled.wait()
        yield completed(turn_id).turn_event

    async def CancelTurn(self, request, context):
        self.cancelled.set()
        return session_pb2.Turn(name=request.name)


async def test_a_turn_runs_without_attaching_to_its_session_and_is_cancelled_by_name():
    servicer = Running()
    async with serving(sessions=servicer) as target, Client(target) as client:
        turn = client.sessions.run_turn("sessions/s", session_pb2.StartTurn(items=[user("x")]))
        pieces = turn.text()
        first = await anext(pieces)
        await turn.cancel()
        rest = [piece async for piece in pieces]

    assert (first, rest) == ("begin", [])
    assert turn.completed is not None
