"""One stream that drives a session: frames come in, events go out."""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from typing import Final

from antiphon.v1.session_pb2 import (
    ConverseRequest,
    ConverseResponse,
    FrameRejected,
    OpenSession,
    SessionChanged,
    SessionOpened,
)
from antiphon.v1.types_pb2 import GoAway

from antiphon_engine.api.errors import AntiphonError, ErrorReason, FieldViolation, InvalidRequest
from antiphon_server.capabilities import unsupported_feature
from antiphon_server.sessions.attachment import Attachment
from antiphon_server.sessions.event_log import EventReader, ReaderSpec
from antiphon_server.sessions.names import check_frame_id, check_turn_id, parse_session_name
from antiphon_server.sessions.records import SessionKey
from antiphon_server.sessions.registry import SessionRegistry
from antiphon_server.sessions.session import LiveSession
from antiphon_server.sessions.turn import LiveTurn
from antiphon_server.sessions.turn_request import (
    Frame,
    TurnRequest,
    read_append,
    read_start_turn,
)
from antiphon_server.status import to_failure
from antiphon_server.validation import check_unknown_fields

MAX_WAITING_FRAMES: Final = 64
"""Turns that ended, and rejections, that one stream is to tell; beyond it its own frames wait."""

MAX_REPEATS: Final = 4
"""How often one stream tells of a turn that has not ended at a time."""

Requests = AsyncIterator[ConverseRequest]


class Conversation:
    """A stream of frames, from `open` to its end."""

    def __init__(self, registry: SessionRegistry, tenant: str, *, traceparent: str = "") -> None:
        """Sets what it is about; `traceparent` is what turns without their own are a part of."""
        self._registry = registry
        self._tenant = tenant
        self._traceparent = traceparent

    async def run(self, requests: Requests) -> AsyncGenerator[ConverseResponse, None]:
        """Yields the frames for the caller.

        Raises:
            AntiphonError: the stream ends with that.
        """
        first = await anext(requests, None)
        if first is None:
            # Half-closed without a word: nothing was asked.
            return
        key = await self._open(first)
        async with AsyncExitStack() as held:
            session = await held.enter_async_context(self._registry.use(key))
            attachment = session.attach()
            stream = _Stream(session, attachment, traceparent=self._traceparent)
            held.callback(stream.close)
            yield ConverseResponse(
                opened=SessionOpened(session=await session.present_with_residency())
            )
            stream.begin(requests)
            async with contextlib.aclosing(stream.frames()) as frames:
                async for frame in frames:
                    yield frame

    async def _open(self, frame: ConverseRequest) -> SessionKey:
        """Returns the session that the first frame names or makes."""
        check_unknown_fields(frame, "")
        check_frame_id(frame.frame_id, "frame_id")
        if frame.WhichOneof("frame") != "open":
            raise InvalidRequest(
                FieldViolation("open", "must be the first frame on a stream; send open first")
            )
        _refuse_unbuilt(frame.open)
        kind = frame.open.WhichOneof("session")
        if kind == "name":
            return parse_session_name(self._tenant, frame.open.name, "open.name")
        if kind == "create":
            session = await self._registry.create(
                self._tenant, frame.open.create, path="open.create"
            )
            return parse_session_name(self._tenant, session.name, "open.create")
        raise InvalidRequest(FieldViolation("open", "must have name or create set"))


class _Stream:
    """The frames of one stream that is attached.

    One task handles what comes in, in order; `frames` tells what goes out. What waits to go out is
    bounded: events wait in their turns' logs, other news replaces older news, and rejections hold
    the incoming frames up once there are many.
    """

    def __init__(self, session: LiveSession, attachment: Attachment, *, traceparent: str) -> None:
        self._session = session
        self._traceparent = traceparent
        self._attachment = attachment
        self._readers: list[EventReader] = []
        self._rejected: deque[FrameRejected] = deque()
        self._room = asyncio.Event()
        self._cancelled_on_disconnect: dict[str, LiveTurn] = {}
        self._incoming: asyncio.Task[None] | None = None
        self._told_go_away = False
        for turn in session.live_turns:
            attachment.own_turn_ids.add(turn.turn_id)
            self._readers.append(turn.log.open_reader(attachment.wake, ReaderSpec(drives=True)))

    def begin(self, requests: Requests) -> None:
        """Begins to handle frames."""
        self._incoming = asyncio.create_task(self._receive(requests))
        self._incoming.add_done_callback(lambda _: self._attachment.wake.set())

    def close(self) -> None:
        """Lets go of the session; never waits."""
        if self._incoming is not None:
            self._incoming.cancel()
        for reader in self._readers:
            reader.close()
        # None are left where the stream ended well: it tells of its turns to their ends.
        for turn in self._cancelled_on_disconnect.values():
            self._session.cancel_live(turn)
        self._session.detach(self._attachment)

    async def frames(self) -> AsyncGenerator[ConverseResponse, None]:
        """Yields what goes out, until all turns are told of and no more frames come.

        Raises:
            AntiphonError: the stream was sent away, or receiving failed.
        """
        attachment = self._attachment
        while True:
            attachment.wake.clear()
            told = False
            for frame in self._due():
                told = True
                yield frame
            if told:
                continue
            if not self._readers and attachment.end is not None:
                raise attachment.end
            assert self._incoming is not None
            if self._incoming.done() and not self._readers:
                self._incoming.result()
                return
            await attachment.wake.wait()

    def _due(self) -> Iterator[ConverseResponse]:
        """Yields one frame of each kind that is due; events in the order of their turns."""
        while self._rejected:
            yield ConverseResponse(rejected=self._rejected.popleft())
            self._room.set()
        for reader in list(self._readers):
            if event := reader.read():
                yield ConverseResponse(turn_event=event)
            if reader.finished:
                self._readers.remove(reader)
                self._room.set()
                reader.close()
                self._attachment.own_turn_ids.discard(reader.turn_id)
                self._cancelled_on_disconnect.pop(reader.turn_id, None)
        if self._attachment.changed:
            self._attachment.changed = False
            yield ConverseResponse(changed=SessionChanged(session=self._session.present()))
        if go_away := self._due_go_away():
            self._told_go_away = True
            yield ConverseResponse(go_away=go_away)

    def _due_go_away(self) -> GoAway | None:
        """Returns what is to be told once; a session that is gone, behind its turns' ends."""
        go_away = self._attachment.go_away
        if go_away is None or self._told_go_away:
            return None
        if go_away.reason == GoAway.REASON_SESSION_GONE and self._readers:
            return None
        return go_away

    async def _receive(self, requests: Requests) -> None:
        """Handles frames in order; one that is refused is told and leaves no trace."""
        async for frame in requests:
            try:
                await self._handle(frame)
            except AntiphonError as error:
                await self._reject(frame, error)

    async def _handle(self, frame: ConverseRequest) -> None:
        check_unknown_fields(frame, "")
        check_frame_id(frame.frame_id, "frame_id")
        kind = frame.WhichOneof("frame")
        if kind == "generate":
            await self._start(read_start_turn(frame.generate, self._frame_of(frame)))
        elif kind == "append":
            await self._start(read_append(frame.append, self._frame_of(frame)))
        elif kind == "cancel":
            check_turn_id(frame.cancel.turn_id, "cancel.turn_id")
            await self._session.cancel_turn(
                frame.cancel.turn_id, discards=frame.cancel.discard_partial
            )
        elif kind == "ack":
            raise unsupported_feature("acknowledgements", "ack")
        elif kind == "open":
            raise InvalidRequest(FieldViolation("open", "must come once, as the first frame"))
        else:
            raise InvalidRequest(
                FieldViolation("frame", "must be one of generate, append, cancel and ack")
            )

    def _frame_of(self, frame: ConverseRequest) -> Frame:
        path = str(frame.WhichOneof("frame"))
        return Frame(path=path, frame_id=frame.frame_id, traceparent=self._traceparent)

    async def _start(self, request: TurnRequest) -> None:
        turn = await self._session.start_turn(request, attachment=self._attachment)
        if turn.live:
            self._check_repeated(turn.turn_id)
        if turn.live and request.cancels_on_disconnect:
            self._cancelled_on_disconnect[turn.turn_id] = turn.live
        # Turns that run don't count: to wait for one would hold up the frame that cancels it.
        await self._wait_for_room(lambda: sum(reader.turn_ended for reader in self._readers))
        spec = ReaderSpec(frame_id=request.frame_id, drives=True)
        reader = turn.log.open_reader(self._attachment.wake, spec)
        self._readers.append(reader)

    def _check_repeated(self, turn_id: str) -> None:
        """Bounds how often a turn is told at a time. Raises AntiphonError, OVERLOADED."""
        num_told = sum(reader.turn_id == turn_id for reader in self._readers)
        if num_told >= MAX_REPEATS:
            raise AntiphonError(
                ErrorReason.OVERLOADED,
                f"This stream tells of the turn {num_told} times already; the limit is"
                f" {MAX_REPEATS}. Read on, or try again when it has ended.",
                metadata={"turn": turn_id, "limit": str(MAX_REPEATS)},
                retry_delay_s=1.0,
            )

    async def _reject(self, frame: ConverseRequest, error: AntiphonError) -> None:
        await self._wait_for_room(lambda: len(self._rejected))
        self._rejected.append(
            FrameRejected(
                frame_id=frame.frame_id[:256],
                turn_id=_turn_id_of(frame)[:64],
                failure=to_failure(error),
            )
        )
        self._attachment.wake.set()

    async def _wait_for_room(self, count_waiting: Callable[[], int]) -> None:
        while count_waiting() >= MAX_WAITING_FRAMES:
            self._room.clear()
            await self._room.wait()


def _refuse_unbuilt(frame: OpenSession) -> None:
    asked = {
        ("resume", "resume"): bool(frame.resume),
        ("take_over", "take_over"): frame.take_over,
        ("acknowledgements", "max_unacked_events"): frame.max_unacked_events > 0,
        ("attachment_id", "attachment_id"): bool(frame.attachment_id),
        ("watch_only", "watch_only"): frame.watch_only,
    }
    for (capability, name), is_asked in asked.items():
        if is_asked:
            raise unsupported_feature(capability, f"open.{name}")


def _turn_id_of(frame: ConverseRequest) -> str:
    kind = frame.WhichOneof("frame")
    if kind in ("generate", "append", "cancel", "ack"):
        turn_id: str = getattr(frame, kind).turn_id
        return turn_id
    return ""
