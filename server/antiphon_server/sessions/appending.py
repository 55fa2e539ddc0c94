"""Items that are added without an answer, by a call that returns the turn."""

from antiphon.v1.session_pb2 import Turn

from antiphon_server.sessions.session import LiveSession
from antiphon_server.sessions.turn_request import TurnRequest


async def append_turn(session: LiveSession, request: TurnRequest) -> Turn:
    """Takes a turn in and returns it once it is durable: ended, unless others are before it.

    Raises:
        AntiphonError: it was refused.
    """
    started = await session.start_turn(request)
    live = started.live
    if live is not None and session.live_turns[:1] == [live]:
        # Nothing is before it, so it ends without further work.
        await live.ended.wait()
    return await session.logs.read_turn(started.turn_id)
