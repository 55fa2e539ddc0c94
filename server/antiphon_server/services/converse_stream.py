"""The frames of a stream that is attached: what comes in, what goes out."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Final

from antiphon.v1.session_pb2 import (
    ConverseRequest,
    ConverseResponse,
    FrameRejected,
    SessionChanged,
    TurnCursor,
)
from antiphon.v1.types_pb2 import GoAway

from antiphon_engine.api.errors import AntiphonError, ErrorReason, FieldViolation, InvalidRequest
from antiphon_server.call_writer import CallWriter
from antiphon_server.services.acknowledgements import Acknowledgements
from antiphon_server.services.direct_telling import DirectTelling, Telling
from antiphon_server.services.opening import Opening
from antiphon_server.services.reader_watch import Grace, ReaderWatch
from antiphon_server.sessions.attachment import Attachment
from antiphon_server.sessions.event_log import EventLog, EventReader, ReaderSpec
from antiphon_server.sessions.names import check_frame_id, check_turn_id
from antiphon_server.sessions.session import LiveSession
from antiphon_server.sessions.turn_request import (
    Frame,
    TurnRequest,
    read_append,
    read_start_turn,
)
from antiphon_server.status import to_failure
from antiphon_server.telemetry.call_trace import CallTrace
from antiphon_server.validation import check_unknown_fields

MAX_WAITING_FRAMES: Final = 64
"""Turns that ended, and rejections, that one stream is to tell; beyond it its own frames wait."""

MAX_REPEATS: Final = 4
"""How often one stream tells of a turn that has not ended at a time."""

Requests = AsyncIterator[ConverseRequest]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamTerms:
    """What one stream goes by."""

    opening: Opening
    call: CallTrace | None
    """What turns without a trace of their own are a part of; None: nobody hears of it."""
    grace: Grace
    """How long its reader may take nothing."""
    writer: CallWriter | None = None
    """What writes beside the task that reads `frames`; None: nothing does."""


class ConverseStream:
    """The frames of one stream that is attached. Used on one event loop.

    One task handles what comes in, in order; `frames` tells what goes out. What waits to go out is
    bounded: events wait in their turns' logs, other news replaces older news, and rejections hold
    the incoming frames up once there are many.
    """

    def __init__(self, session: LiveSession, attachment: Attachment, terms: StreamTerms) -> None:
        """Begins to tell of the turns that have not ended; those in the way wait their turn."""
        self._session = session
        self._attachment = attachment
        self._terms = terms
        self._drives = not attachment.request.watches
        self._readers: list[EventReader] = []
        self._acks = Acknowledgements(terms.opening.max_unacked_events)
        self._watch = ReaderWatch(terms.grace, self._lose)
        self._direct = DirectTelling(
            terms.writer, Telling(wake=attachment.wake, acks=self._acks, watch=self._watch)
        )
        self._rejected: deque[FrameRejected] = deque()
        self._room = asyncio.Event()
        self._incoming: asyncio.Task[None] | None = None
        self._told_go_away = False
        self._may_tell_more = False  # Behind what was told just now.
        self._closed = False
        self._cursors = dict(terms.opening.cursors)
        for turn in session.live_turns:
            if turn.accepted.done():
                attachment.own_turn_ids.add(turn.turn_id)
                self._tell_of(turn.log, cursor=self._cursors.pop(turn.turn_id, None))
            else:
                attachment.tell_of(turn)
        # Those that have ended are looked up one after the other, to hold one at a time.
        live_ids = {turn.turn_id for turn in session.live_turns}
        self._to_replay = deque(name for name in self._cursors if name not in live_ids)

    def begin(self, requests: Requests) -> None:
        """Begins to handle frames."""
        self._incoming = asyncio.create_task(self._receive(requests))
        self._incoming.add_done_callback(lambda _: self._attachment.wake.set())
        self._watch.start()

    def send_away(self, go_away: GoAway, end: AntiphonError) -> None:
        """Tells the caller, and ends behind the turns that it tells of."""
        self._attachment.send_away(go_away, end)

    def cut_off(self, end: AntiphonError) -> None:
        """Ends behind what there is to tell."""
        self._attachment.cut(end)

    def close(self) -> None:
        """Lets go of the session. Idempotent; never waits."""
        if self._closed:
            return
        self._closed = True
        self._watch.close()
        self._direct.close()
        if self._incoming is not None:
            self._incoming.cancel()
        left = list(self._readers)
        for reader in left:
            reader.close()
        self._acks.close()
        self._session.detach(self._attachment)
        if self._drives:
            for reader in left:
                self._session.note_leaving(reader.turn_id)

    async def frames(self) -> AsyncGenerator[ConverseResponse, None]:
        """Yields what goes out, until all turns are told of and no more frames come.

        Raises:
            AntiphonError: the stream was sent away or lost its reader, or receiving failed.
        """
        attachment = self._attachment
        while True:
            attachment.wake.clear()
            self._may_tell_more = False
            for frame in self._due():
                self._watch.begin_write()
                yield frame
                self._watch.end_write()
            if self._may_tell_more or attachment.wake.is_set():
                continue
            if attachment.end is not None and (attachment.is_cut or not self._has_turns):
                raise attachment.end
            assert self._incoming is not None
            if self._incoming.done() and not self._has_turns:
                self._incoming.result()
                return
            if not (self._to_replay and await self._replay_next()):
                await self._direct.wait_for_news()

    @property
    def _has_turns(self) -> bool:
        """Whether there are turns left to tell of."""
        return bool(self._readers or self._to_replay or self._attachment.new_turns)

    def _due(self) -> Iterator[ConverseResponse]:
        """Yields one frame of each kind that is due; events in the order of their turns."""
        attachment = self._attachment
        while self._rejected and not attachment.is_cut:
            yield ConverseResponse(rejected=self._rejected.popleft())
            self._room.set()
        while attachment.new_turns and len(self._readers) < MAX_WAITING_FRAMES:
            log = attachment.new_turns.popleft().log
            self._tell_of(log, cursor=self._cursors.pop(log.turn_id, None))
        for reader in list(self._readers):
            if attachment.is_cut:
                break
            if self._acks.full and reader.has_news:
                self._watch.await_acknowledgement()
                continue
            frame = None
            if reader.has_news:
                frame = ConverseResponse()
                reader.read_into(frame.turn_event)
                self._acks.note_sent(frame.turn_event)
            if reader.has_news:
                self._may_tell_more = True
            elif reader.turn_ended:
                self._end_telling(reader)
            if frame is not None:
                yield frame
        if attachment.changed and not attachment.is_cut:
            attachment.changed = False
            yield ConverseResponse(changed=SessionChanged(session=self._session.present()))
        if attachment.go_away is not None and (go_away := self._due_go_away()):
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

    def _tell_of(
        self, log: EventLog, *, cursor: TurnCursor | None = None, frame_id: str | None = None
    ) -> None:
        """Begins to tell of a turn from where the caller stands in it."""
        spec = ReaderSpec(
            frame_id=frame_id,
            cursor=cursor,
            drives=self._drives,
            acknowledges=self._acks.counts,
        )
        reader = log.open_reader(self._attachment.wake, spec, take_news=self._direct.tell)
        self._readers.append(reader)
        self._acks.follow(reader)

    def _end_telling(self, reader: EventReader) -> None:
        """Notes that a turn has been told of whole."""
        self._readers.remove(reader)
        self._may_tell_more = True  # What waited for it.
        self._room.set()
        self._attachment.own_turn_ids.discard(reader.turn_id)
        if not self._acks.counts:
            reader.close()

    async def _replay_next(self) -> bool:
        """Begins to tell of the next turn that has ended, unless others have to come first."""
        if any(reader.turn_ended for reader in self._readers):
            return False
        log = await self._session.logs.find(self._to_replay[0])
        self._to_replay.popleft()
        self._tell_of(log, cursor=self._cursors.pop(log.turn_id))
        return True

    def _lose(self) -> None:
        """Gives the stream up: its reader has been away too long."""
        place = self._acks.place
        if place is None and self._readers:
            reader = self._readers[0]
            place_of = (reader.turn_id, reader.log.epoch, reader.settled)
        else:
            place_of = (place.turn_id, place.epoch, place.sequence) if place else ("", 0, 0)
        self._attachment.cut(slow_consumer(*place_of, grace_s=self._terms.grace.grace_s))
        self.close()

    async def _receive(self, requests: Requests) -> None:
        """Handles frames in order; one that is refused is told and leaves no trace."""
        async for frame in requests:
            try:
                await self._handle(frame)
            except AntiphonError as error:
                await self._reject(frame, error)
        self._acks.lift()
        self._watch.note_acknowledgement()

    async def _handle(self, frame: ConverseRequest) -> None:
        check_unknown_fields(frame, "")
        check_frame_id(frame.frame_id, "frame_id")
        kind = frame.WhichOneof("frame")
        if kind == "open":
            raise InvalidRequest(FieldViolation("open", "must come once, as the first frame"))
        if kind is None:
            raise InvalidRequest(
                FieldViolation("frame", "must be one of generate, append, cancel and ack")
            )
        if not self._drives:
            raise InvalidRequest(
                FieldViolation(
                    kind, "can't come on a stream that only watches; open one without watch_only"
                )
            )
        if kind == "generate":
            await self._start(read_start_turn(frame.generate, self._frame_of(frame)))
        elif kind == "append":
            await self._start(read_append(frame.append, self._frame_of(frame)))
        elif kind == "cancel":
            check_turn_id(frame.cancel.turn_id, "cancel.turn_id")
            await self._session.cancel_turn(
                frame.cancel.turn_id, discards=frame.cancel.discard_partial
            )
        else:
            check_turn_id(frame.ack.turn_id, "ack.turn_id")
            if self._acks.acknowledge(frame.ack):
                self._watch.note_acknowledgement()
                self._attachment.wake.set()

    def _frame_of(self, frame: ConverseRequest) -> Frame:
        path = str(frame.WhichOneof("frame"))
        return Frame(path=path, frame_id=frame.frame_id, call=self._terms.call)

    async def _start(self, request: TurnRequest) -> None:
        if self._acks.counts and self._num_ended >= MAX_WAITING_FRAMES:
            # To wait for room would hold up the acknowledgements that make it.
            raise _too_many_untold()
        turn = await self._session.start_turn(request, attachment=self._attachment)
        if turn.live:
            self._check_repeated(turn.turn_id)
        # Turns that run don't count: to wait for one would hold up the frame that cancels it.
        try:
            await self._wait_for_room(lambda: self._num_ended)
        except asyncio.CancelledError:
            # The stream has gone, and told of no reader of this turn's.
            self._session.note_leaving(turn.turn_id)
            raise
        self._tell_of(turn.log, frame_id=request.frame_id)

    @property
    def _num_ended(self) -> int:
        return sum(reader.turn_ended for reader in self._readers)

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


def slow_consumer(turn_id: str, epoch: int, sequence: int, *, grace_s: float) -> AntiphonError:
    """Returns the error for a reader that has been away; it names the last place taken in."""
    return AntiphonError(
        ErrorReason.SLOW_CONSUMER,
        f"Nothing was taken in for {grace_s:g} s, so this stream ends; its turns go on as their"
        " on_disconnect says. Open another, with resume for what you have seen.",
        metadata={
            "turn": turn_id,
            "epoch": str(epoch),
            "sequence": str(sequence),
            "grace_s": f"{grace_s:g}",
            "resumable": "true",
        },
    )


def _too_many_untold() -> AntiphonError:
    return AntiphonError(
        ErrorReason.OVERLOADED,
        f"{MAX_WAITING_FRAMES} turns that ended wait to be told of, which takes acknowledgements;"
        " acknowledge what you have, then send the frame again.",
        metadata={"limit": str(MAX_WAITING_FRAMES)},
        retry_delay_s=1.0,
    )


def _turn_id_of(frame: ConverseRequest) -> str:
    kind = frame.WhichOneof("frame")
    if kind in ("generate", "append", "cancel", "ack"):
        turn_id: str = getattr(frame, kind).turn_id
        return turn_id
    return ""
