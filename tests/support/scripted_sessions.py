"""A session service whose reactions to frames a test writes itself."""

import asyncio
from collections.abc import AsyncIterator, Callable

from antiphon.v1 import session_pb2, session_pb2_grpc, types_pb2
from grpc import aio

React = Callable[
    [session_pb2.ConverseRequest, aio.ServicerContext], AsyncIterator[session_pb2.ConverseResponse]
]
Response = session_pb2.ConverseResponse
SESSION = session_pb2.Session(name="sessions/s", etag="1")


def event(turn_id: str, **kind: object) -> Response:
    """Returns a frame with an event of this turn."""
    return Response(turn_event=session_pb2.TurnEvent(turn_id=turn_id, **kind))


def delta(turn_id: str, text: str, channel: int = types_pb2.OUTPUT_CHANNEL_CONTENT) -> Response:
    """Returns a frame with a piece of the answer."""
    return event(turn_id, delta=types_pb2.Delta(channel=channel, text=text))


def completed(turn_id: str, finish_reason: int = types_pb2.FINISH_REASON_STOP) -> Response:
    """Returns a frame that ends the turn."""
    ended = session_pb2.TurnCompleted(finish_reason=finish_reason)
    return event(turn_id, completed=ended)


class Conversing(session_pb2_grpc.SessionServiceServicer):
    """Answers `open`, then hands every frame to the test, which writes what it likes."""

    def __init__(self, react: React | None = None, *, opened: bool = True) -> None:
        self.react = react
        self.opened = opened
        self.frames: list[session_pb2.ConverseRequest] = []
        self.half_closed = asyncio.Event()
        self.ended = asyncio.Event()

    async def Converse(
        self,
        request_iterator: AsyncIterator[session_pb2.ConverseRequest],
        context: aio.ServicerContext,
    ) -> AsyncIterator[Response]:
        context.add_done_callback(lambda _: self.ended.set())
        async for frame in request_iterator:
            self.frames.append(frame)
            if frame.WhichOneof("frame") == "open":
                if not self.opened:
                    await asyncio.sleep(60)
                yield Response(opened=session_pb2.SessionOpened(session=SESSION))
            elif self.react is not None:
                async for response in self.react(frame, context):
                    yield response
        self.half_closed.set()


async def echo(
    frame: session_pb2.ConverseRequest, context: aio.ServicerContext
) -> AsyncIterator[Response]:
    """Answers a turn with its own words."""
    turn = frame.generate
    yield event(turn.turn_id, accepted=session_pb2.TurnAccepted(frame_id=frame.frame_id))
    yield event(turn.turn_id, started=types_pb2.GenerationStarted(prompt_tokens=3))
    yield delta(turn.turn_id, "thinking", types_pb2.OUTPUT_CHANNEL_REASONING)
    for word in turn.items[0].message.text.split(" "):
        yield delta(turn.turn_id, word)
    yield completed(turn.turn_id)
