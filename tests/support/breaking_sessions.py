"""A session service whose turns outlive its streams, which break where a test says so."""

import asyncio
import contextlib
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import grpc
from antiphon.v1 import session_pb2, session_pb2_grpc, types_pb2
from google.rpc import error_details_pb2
from grpc import aio

from support.scripted_services import refuse

Event = session_pb2.TurnEvent
Response = session_pb2.ConverseResponse
SESSION = session_pb2.Session(name="sessions/s", etag="1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Break:
    """How one stream ends: behind this many frames of the server's, `opened` among them.

    They come whole to a client that only reads. Of one that writes meanwhile gRPC may drop the last
    ones, since a write that fails ends the call.
    """

    behind: int
    crashes: bool = False
    """Whether the turns are in another epoch afterwards."""
    loses_frames: bool = False
    """Whether frames that start turns go unheard, as if they had come too late."""


@dataclass(slots=True)
class _Turn:
    """A turn's events, kept whatever becomes of streams."""

    events: list[Event]
    is_told: bool = False


@dataclass(slots=True)
class _Reader:
    turn_id: str
    position: int = 0
    resets: bool = False


def events_of(turn_id: str, pieces: Sequence[str]) -> list[Event]:
    """Returns the events of an answer that comes in these pieces, without sequence numbers."""
    content = types_pb2.OUTPUT_CHANNEL_CONTENT
    return [
        Event(turn_id=turn_id, accepted=session_pb2.TurnAccepted(frame_id=turn_id)),
        Event(turn_id=turn_id, started=types_pb2.GenerationStarted(prompt_tokens=3)),
        *(
            Event(turn_id=turn_id, delta=types_pb2.Delta(channel=content, text=piece))
            for piece in pieces
        ),
        Event(
            turn_id=turn_id,
            completed=session_pb2.TurnCompleted(finish_reason=types_pb2.FINISH_REASON_STOP),
        ),
    ]


def told(turn_id: str, events: Sequence[Event], epoch: int, first: int, last: int) -> Event:
    """Returns the events from place `first` to place `last`, joined, with their numbers."""
    joined = Event()
    joined.CopyFrom(events[first])
    joined.turn_id, joined.epoch = turn_id, epoch
    joined.first_sequence, joined.sequence = first + 1, last + 1
    for event in events[first + 1 : last + 1]:
        joined.delta.text += event.delta.text
    return joined


def joinable(events: Sequence[Event], first: int, most: int) -> int:
    """Returns the last place that can be joined with `first`, at most `most` events."""
    last = first
    while (
        last + 1 - first < most
        and events[first].HasField("delta")
        and events[last + 1].HasField("delta")
    ):
        last += 1
    return last


@dataclass(slots=True)
class _Stream:
    ending: Break | None
    readers: list[_Reader] = field(default_factory=list)
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    heard_start: bool = False
    is_over: bool = False


class BreakingSessions(session_pb2_grpc.SessionServiceServicer):
    """Answers every turn with `answer`, over streams that end as `breaks` say, one each.

    Attributes:
        frames: All that was heard, stream after stream.
        num_runs: How often each turn was begun.
        ended_epochs: In which epochs each turn's end was told. A crash behind that may cost the
            reader the end or not.
        heard: Set with every frame.
    """

    def __init__(
        self,
        answer: Callable[[str, int], Sequence[str]],
        breaks: Iterable[Break] = (),
        *,
        most_joined: Callable[[], int] = lambda: 1,
    ) -> None:
        """`answer` gets a turn's id and the epoch; `most_joined` how many events one may join."""
        self._answer = answer
        self._breaks: Iterator[Break] = iter(breaks)
        self._most_joined = most_joined
        self._turns: dict[str, _Turn] = {}
        self.epoch = 1
        self.frames: list[session_pb2.ConverseRequest] = []
        self.num_runs: Counter[str] = Counter()
        self.ended_epochs: defaultdict[str, set[int]] = defaultdict(set)
        self.heard = asyncio.Event()

    async def until(self, condition: Callable[[], object]) -> None:
        """Waits for frames until the condition holds."""
        async with asyncio.timeout(60):
            while not condition():
                self.heard.clear()
                await self.heard.wait()

    @property
    def openings(self) -> list[session_pb2.OpenSession]:
        return [frame.open for frame in self.frames if frame.HasField("open")]

    async def Converse(
        self,
        request_iterator: AsyncIterator[session_pb2.ConverseRequest],
        context: aio.ServicerContext,
    ) -> AsyncIterator[Response]:
        stream = _Stream(next(self._breaks, None))
        first = await anext(request_iterator)
        self.frames.append(first)
        self.heard.set()
        self._attach(stream, first.open)
        hearing = asyncio.create_task(self._hear(stream, request_iterator))
        try:
            async for response in self._tell(stream):
                yield response
        except ConnectionError:
            await self._break(stream, context)
        finally:
            hearing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await hearing

    def _attach(self, stream: _Stream, opening: session_pb2.OpenSession) -> None:
        named = {cursor.turn_id for cursor in opening.resume}
        for cursor in opening.resume:
            is_current = cursor.epoch == self.epoch
            position = cursor.sequence if is_current else 0
            stream.readers.append(_Reader(cursor.turn_id, position, resets=not is_current))
        for turn_id, turn in self._turns.items():
            if turn_id not in named and not turn.is_told:
                stream.readers.append(_Reader(turn_id))

    async def _hear(
        self, stream: _Stream, frames: AsyncIterator[session_pb2.ConverseRequest]
    ) -> None:
        async for frame in frames:
            self.frames.append(frame)
            self.heard.set()
            if frame.HasField("generate"):
                stream.heard_start = True
                if not (stream.ending and stream.ending.loses_frames):
                    self._start(stream, frame.generate.turn_id)
            stream.wake.set()
        stream.is_over = True
        stream.wake.set()

    def _start(self, stream: _Stream, turn_id: str) -> None:
        if turn_id not in self._turns:
            self.num_runs[turn_id] += 1
            self._turns[turn_id] = _Turn(events_of(turn_id, self._answer(turn_id, self.epoch)))
        stream.readers.append(_Reader(turn_id))

    async def _tell(self, stream: _Stream) -> AsyncIterator[Response]:
        yield Response(opened=session_pb2.SessionOpened(session=SESSION))
        num_told = 1
        while True:
            stream.wake.clear()
            for reader in list(stream.readers):
                self._check(stream, num_told)
                yield Response(turn_event=self._next(stream, reader))
                num_told += 1
                await asyncio.sleep(0)
            if stream.heard_start and stream.ending and stream.ending.loses_frames:
                raise ConnectionError
            if stream.readers:
                continue
            if stream.is_over:
                return
            await stream.wake.wait()

    def _check(self, stream: _Stream, num_told: int) -> None:
        if stream.ending and num_told >= stream.ending.behind:
            raise ConnectionError

    def _next(self, stream: _Stream, reader: _Reader) -> Event:
        turn = self._turns[reader.turn_id]
        if reader.resets:
            reader.resets = False
            return Event(turn_id=reader.turn_id, epoch=self.epoch, reset=session_pb2.TurnReset())
        first = reader.position
        last = joinable(turn.events, first, self._most_joined())
        reader.position = last + 1
        if reader.position == len(turn.events):
            turn.is_told = True
            self.ended_epochs[reader.turn_id].add(self.epoch)
            stream.readers.remove(reader)
        return told(reader.turn_id, turn.events, self.epoch, first, last)

    async def _break(self, stream: _Stream, context: aio.ServicerContext) -> None:
        if stream.ending and stream.ending.crashes:
            self.epoch += 1
            for turn_id, turn in self._turns.items():
                turn.events = events_of(turn_id, self._answer(turn_id, self.epoch))
        info = error_details_pb2.ErrorInfo(reason="ENGINE_DOWN")
        await refuse(context, grpc.StatusCode.UNAVAILABLE, "it broke", info)
