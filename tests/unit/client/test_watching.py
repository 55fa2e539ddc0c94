"""A client that watches what others do in a session."""

import asyncio

import grpc
import pytest
from antiphon.v1 import session_pb2, types_pb2
from google.rpc import error_details_pb2

from antiphon_client import (
    Client,
    ClientOptions,
    RetryPolicy,
    SessionNotFound,
    SyncClient,
    TurnRestarted,
)
from support.breaking_sessions import Break, BreakingSessions
from support.fake_engine import FakeEngine
from support.scripted_services import refuse, serving
from support.server import running_server

QUICK = ClientOptions(
    reconnect=RetryPolicy(first_delay_s=0.005, max_delay_s=0.02), reconnect_timeout_s=60
)


class Watched(BreakingSessions):
    """A session in which a turn runs that nobody here has started."""

    def __init__(self, answer, breaks=()):
        super().__init__(answer, breaks)
        self._start(_Nobody(), "t")


class _Nobody:
    def __init__(self):
        self.readers = []
        self.ending = None


async def read(watch):
    """Returns the answer of the turn as it is at last, and how often it was begun again."""
    text, num_restarts = "", 0
    while True:
        try:
            event = await anext(watch)
        except TurnRestarted as restarted:
            text, num_restarts = restarted.kept_text, num_restarts + 1
            continue
        if event.HasField("completed"):
            return text, num_restarts
        text += event.delta.text


@pytest.mark.parametrize("crashes", [False, True])
@pytest.mark.parametrize("behind", range(1, 7))
async def test_a_watch_that_breaks_anywhere_tells_every_piece_once(behind, crashes):
    servicer = Watched(
        lambda *_: ("one ", "two ", "three"), [Break(behind=behind, crashes=crashes)]
    )
    async with (
        serving(sessions=servicer) as target,
        Client(target, QUICK) as client,
        client.watch_session("sessions/s") as watch,
    ):
        assert await read(watch) == ("one two three", 0)

    assert all(opening.watch_only for opening in servicer.openings)
    assert all(opening.max_unacked_events == 0 for opening in servicer.openings)


async def test_an_answer_that_is_another_is_told_with_its_turn():
    answers = {1: ("Good ", "day"), 2: ("Good ", "night")}
    servicer = Watched(lambda _, epoch: answers[epoch], [Break(behind=5, crashes=True)])
    async with (
        serving(sessions=servicer) as target,
        Client(target, QUICK) as client,
        client.watch_session("sessions/s") as watch,
    ):
        assert await read(watch) == ("Good night", 1)


async def test_a_session_that_is_gone_ends_the_watch():
    class Gone(BreakingSessions):
        async def Converse(self, request_iterator, context):
            async for response in self.first(request_iterator):
                yield response
            info = error_details_pb2.ErrorInfo(reason="SESSION_NOT_FOUND")
            await refuse(context, grpc.StatusCode.NOT_FOUND, "deleted", info)

        async def first(self, request_iterator):
            await anext(request_iterator)
            session = session_pb2.Session(name="sessions/s")
            opened = session_pb2.SessionOpened(session=session)
            yield session_pb2.ConverseResponse(opened=opened)

    async with (
        serving(sessions=Gone(lambda *_: ())) as target,
        Client(target, QUICK) as client,
        client.watch_session("sessions/s") as watch,
    ):
        with pytest.raises(SessionNotFound):
            await anext(watch)


def at_most(num_tokens):
    return types_pb2.GenerationConfig(
        stop=types_pb2.StopConditions(max_output_tokens=num_tokens, ignore_eos=True)
    )


async def test_the_turns_and_changes_of_a_real_session_are_seen(tmp_path):
    def program(target):
        with SyncClient(target) as client, client.watch_session("sessions/s") as watch:
            watching.set()
            kinds, text = [], ""
            for happening in watch:
                if isinstance(happening, session_pb2.Session):
                    if happening.instructions == "be brief":
                        return kinds, text
                    continue
                kinds.append(happening.WhichOneof("event"))
                text += happening.delta.text

    watching = asyncio.Event()
    loop = asyncio.get_running_loop()
    set_here = watching.set
    watching.set = lambda: loop.call_soon_threadsafe(set_here)
    async with (
        running_server(tmp_path, engine=FakeEngine(step_interval_s=0.002)) as server,
        Client(server.target) as client,
        client.new_session(session_id="s") as session,
    ):
        seen = asyncio.create_task(asyncio.to_thread(program, server.target))
        await watching.wait()
        answer = await (await session.send("count", at_most(8))).answer()
        changed = session_pb2.Session(name="sessions/s", instructions="be brief")
        await client.sessions.update(changed, ["instructions"])
        kinds, text = await asyncio.wait_for(seen, 60)

    assert text == answer != ""
    assert (kinds[0], kinds[-1]) == ("accepted", "completed")
