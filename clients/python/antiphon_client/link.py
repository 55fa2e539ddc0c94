"""A session's tie to its server: one stream after the other, as if they were one."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, TypeAlias
from uuid import uuid4

import grpc
from antiphon.v1 import session_pb2, types_pb2

from antiphon_client.channel import Connection
from antiphon_client.errors import ErrorDetails, ServerError
from antiphon_client.failures import error_of, from_failure
from antiphon_client.feed import Acknowledgements, Feed
from antiphon_client.outbox import Outbox
from antiphon_client.reasons import Draining, SlowConsumer, TurnNotFound
from antiphon_client.retry import Outage, passes
from antiphon_client.stream import ConverseStream

Watcher: TypeAlias = Callable[[ServerError | None], None]
"""Is told why the stream was lost and is opened again, then None once it stands; each once."""

_ENDING_EVENTS: Final = ("completed", "failed")
_FINAL: Final = {
    types_pb2.GoAway.REASON_TAKEN_OVER: grpc.StatusCode.ABORTED,
    types_pb2.GoAway.REASON_SESSION_GONE: grpc.StatusCode.NOT_FOUND,
}
"""Reasons behind which no stream is opened again, and what they mean."""


class SessionLink:
    """Opens the session's stream, again where it breaks, and ties the pieces together.

    Every frame is kept until it is answered and written again on the next stream; every turn is
    followed from where it stood. So each turn runs once and is told once.
    """

    def __init__(
        self,
        connection: Connection,
        opening: session_pb2.OpenSession,
        watcher: Watcher | None = None,
    ) -> None:
        options = connection.options
        self.info = session_pb2.Session()
        self.go_away: types_pb2.GoAway | None = None
        self.wake = asyncio.Event()
        self.ended: ServerError | None = None
        """Why the session can't be talked to any more through this link."""
        self.is_attached = False
        self._connection = connection
        self._opening = opening
        self._attachment_id = uuid4().hex
        self._watcher = watcher or _ignore
        self._outbox = Outbox()
        self._acknowledgements = Acknowledgements(options.max_unacked_events, self.wake.set)
        self._feeds: dict[str, Feed] = {}
        self._wanted = asyncio.Event()
        self._outage = Outage(
            options.reconnect, connection.pace, timeout_s=options.reconnect_timeout_s
        )
        self._driver: asyncio.Task[None] | None = None
        self._ready: deque[session_pb2.ConverseRequest] = deque()
        self._why_lost: ServerError | None = None
        self._is_told_lost = False
        self._is_closing = False

    async def open(self) -> None:
        """Attaches to the session, or creates it. Raises ServerError: it was refused."""
        assert self._driver is None, "a session is opened once"
        stream = await self._connection.retrier.run(
            self._attach, timeout_s=self._connection.options.timeout_s
        )
        if self._is_closing:
            stream.cancel()
            raise _stream_over()
        self._driver = asyncio.create_task(self._drive(stream))

    async def start(self, turn_id: str, frame: session_pb2.ConverseRequest) -> Feed:
        """Sends a frame that starts a turn, and returns the turn's news.

        Raises:
            ServerError: the session can't be talked to any more.
            ValueError: the turn is followed already.
        """
        await self._wait_for_room()
        if turn_id in self._feeds:
            raise ValueError(f"this session already follows the turn {turn_id}")
        feed = self._feeds[turn_id] = Feed(turn_id, self._acknowledgements, self._wanted)
        self._send(frame, turn_id)
        return feed

    async def cancel(self, request: session_pb2.CancelRequest) -> None:
        """Asks for a turn's early end; of one that has ended there is nothing to ask."""
        if request.turn_id not in self._feeds:
            return
        await self._wait_for_room()
        frame = session_pb2.ConverseRequest(frame_id=uuid4().hex, cancel=request)
        self._send(frame, request.turn_id)

    async def close(self) -> None:
        """Waits a while for turns that run, then ends the stream. Idempotent."""
        driver = self._driver
        self._is_closing = True
        self.wake.set()
        if driver is None:
            return
        has_work = self.is_attached or bool(self._feeds)
        try:
            if has_work:
                await asyncio.wait([driver], timeout=self._connection.options.close_timeout_s)
        finally:
            # Also where whoever waits is cancelled: nobody else would end it.
            driver.cancel()
            await asyncio.wait([driver])

    def next_frame(self) -> session_pb2.ConverseRequest | None:
        """Returns what the stream is to write next; acknowledgements go before other frames."""
        if not self._ready:
            frame = self._outbox.next_frame()
            if frame is not None or self._acknowledgements.is_due:
                cursors = self._acknowledgements.take()
                self._ready.extend(session_pb2.ConverseRequest(ack=each) for each in cursors)
            if frame is not None:
                self._ready.append(frame)
        return self._ready.popleft() if self._ready else None

    def are_over(self) -> bool:
        """Returns whether the stream is to be half-closed: nothing more is written to it."""
        return self._is_quiet() if self._outbox.holds_starts else self._is_closing

    async def _wait_for_room(self) -> None:
        assert self._driver is not None, "enter the session first"
        await self._outbox.wait_for_room()
        if self.ended is not None:
            raise self.ended

    def _send(self, frame: session_pb2.ConverseRequest, turn_id: str) -> None:
        self._outbox.put(frame, turn_id)
        self.wake.set()
        self._wanted.set()

    async def _drive(self, stream: ConverseStream) -> None:
        """Opens one stream after the other until the session is closed or lost."""
        failure = _stream_over()
        try:
            while not await self._run(stream):
                stream = await self._reopen(self._why_lost)
        except ServerError as error:
            failure = error
        finally:
            self.is_attached = False
            self.ended = failure
            for feed in self._feeds.values():
                feed.fail(failure)
            self._feeds.clear()
            self._outbox.end()

    async def _run(self, stream: ConverseStream) -> bool:
        """Follows a stream to its end; returns whether it was the last.

        Raises:
            ServerError: none may follow it.
        """
        opened_s = self._connection.pace.clock()
        failure = await stream.run(self, self._take)
        self.is_attached = False
        if (
            self._connection.pace.clock() - opened_s
            > self._connection.options.reconnect.max_delay_s
        ):
            self._outage.end()
        if self.go_away is not None and self.go_away.reason in _FINAL:
            raise failure or _went_away(self.go_away)
        is_done = failure is None and not self._outbox.holds_starts
        if self._is_closing and (is_done or not self._feeds):
            return True
        self._why_lost = failure
        return False

    async def _reopen(self, failure: ServerError | None) -> ConverseStream:
        """Returns a new stream in place of one that was lost, or that was asked to end.

        Raises:
            ServerError: there is none to be had.
        """
        is_asked = failure is None and self._outbox.holds_starts
        why = failure or _stream_over()
        if isinstance(why, SlowConsumer):
            await self._somebody_reads()
        elif not is_asked:
            if not passes(why):
                raise why
            self._tell_lost(why)
            await self._outage.wait(why)
        while True:
            try:
                stream = await self._attach(
                    self._outage.left_s or self._connection.options.timeout_s
                )
            except TurnNotFound as error:
                if not self._lose_turn(error):
                    raise
            except ServerError as error:
                if not passes(error):
                    raise
                self._tell_lost(error)
                await self._outage.wait(error)
            else:
                self._tell_back()
                return stream

    def _tell_lost(self, why: ServerError) -> None:
        """Tells the watcher, however many tries it takes, once."""
        if not self._is_told_lost:
            self._is_told_lost = True
            self._watcher(why)

    def _tell_back(self) -> None:
        """Tells the watcher, where it was told that the stream was lost."""
        if self._is_told_lost:
            self._is_told_lost = False
            self._watcher(None)

    def _lose_turn(self, failure: TurnNotFound) -> bool:
        """Fails the one turn that a server does not know any more; False: it is not followed."""
        turn_id = failure.metadata.get("turn", "").rpartition("/")[2]
        feed = self._feeds.pop(turn_id, None)
        if feed is None:
            return False
        self._outbox.ended(turn_id)
        feed.fail(failure)
        return True

    async def _somebody_reads(self) -> None:
        """Waits for a reader of what the server could not get rid of, or for a new frame."""
        while not any(feed.is_awaited for feed in self._feeds.values()):
            self._wanted.clear()
            await self._wanted.wait()
            if self._outbox:
                return

    async def _attach(self, left_s: float) -> ConverseStream:
        """Opens a stream that goes on where the last one ended."""
        options = self._connection.options
        opening = session_pb2.OpenSession()
        opening.CopyFrom(self._opening)
        if self.info.name:
            opening.name = self.info.name
            opening.take_over = False  # Whoever took it since keeps it.
        opening.attachment_id = self._attachment_id
        opening.max_unacked_events = options.max_unacked_events
        opening.resume.extend(
            feed.cursor
            for turn_id, feed in self._feeds.items()
            if not self._outbox.keeps_start_of(turn_id)
        )
        timeout_s = min(left_s, options.timeout_s)
        stream, self.info = await ConverseStream.open(
            self._connection, opening, timeout_s=timeout_s
        )
        self.go_away = None
        self.is_attached = True
        self._ready.clear()
        self._outbox.write_again()
        return stream

    def _take(self, response: session_pb2.ConverseResponse) -> None:
        match response.WhichOneof("frame"):
            case "turn_event":
                self._outage.end()
                self._take_event(response.turn_event)
            case "rejected":
                self._take_rejection(response.rejected)
            case "changed":
                self.info = response.changed.session
            case "go_away":
                self.go_away = response.go_away
                self._outbox.holds_starts = True
        if self._outbox.holds_starts:
            self.wake.set()

    def _take_event(self, event: session_pb2.TurnEvent) -> None:
        has_ended = event.WhichOneof("event") in _ENDING_EVENTS
        feed = self._feeds.get(event.turn_id)
        if feed is None:  # of a turn that another stream started, or told again
            cursor = session_pb2.TurnCursor(
                turn_id=event.turn_id, epoch=event.epoch, sequence=event.sequence
            )
            self._acknowledgements.note(cursor, is_last=has_ended)
            return
        feed.put(event)
        if self._outbox.keeps_start_of(event.turn_id):
            self._outbox.answered(event.turn_id)
        if has_ended:
            self._outbox.ended(event.turn_id)
            del self._feeds[event.turn_id]

    def _take_rejection(self, rejected: session_pb2.FrameRejected) -> None:
        frame_id = rejected.frame_id
        if not self._outbox.keeps_start_of(frame_id):
            # A refused cancellation: its turn goes on.
            self._outbox.answered(frame_id)
            return
        failure = from_failure(rejected.failure)
        if isinstance(failure, Draining):
            self._outbox.hold(frame_id)
            return
        self._outbox.ended(frame_id)
        self._feeds.pop(frame_id).fail(failure)

    def _is_quiet(self) -> bool:
        """Returns whether this stream has nothing more to tell."""
        return not self._outbox.awaits_answers and all(
            self._outbox.keeps_start_of(turn_id) for turn_id in self._feeds
        )


def _ignore(_: ServerError | None) -> None:
    """Is told in vain."""


def _stream_over() -> ServerError:
    return error_of(
        ErrorDetails(code=grpc.StatusCode.CANCELLED, message="the session's stream has ended")
    )


def _went_away(go_away: types_pb2.GoAway) -> ServerError:
    reason = types_pb2.GoAway.Reason.Name(go_away.reason)
    return error_of(
        ErrorDetails(
            code=_FINAL[go_away.reason], message=f"the server ended the session's stream: {reason}"
        )
    )
