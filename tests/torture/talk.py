"""One conversation on a stream that breaks: frames are sent, and what was cut off is resumed."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import grpc
from antiphon.v1.session_pb2 import (
    CancelRequest,
    ConverseRequest,
    ConverseResponse,
    OpenSession,
    StartTurn,
    TurnCursor,
    TurnEvent,
)
from antiphon.v1.session_pb2_grpc import SessionServiceStub

from torture.calls import ANSWER_LIMIT_S, BrokenError, Patience, RefusedError, verdict_of
from torture.session_notes import SessionNotes
from torture.tally import Kind, Tally, ViolationError
from torture.turn_notes import TurnNotes
from torture.victim import Victim

Call = grpc.aio.StreamStreamCall[ConverseRequest, ConverseResponse]


@dataclass(slots=True, kw_only=True)
class Step:
    """Something to send: a turn, or its cancellation."""

    turn: TurnNotes
    cancels: bool = False
    discards: bool = False
    behind: TurnNotes | None = None
    """Sent only once this turn has been told of, and how many events of it."""
    num_events: int = 0
    sent: bool = False

    @property
    def interrupts(self) -> bool:
        """Whether it stops what runs."""
        frame = self.turn.frame
        return (
            not self.cancels
            and isinstance(frame, StartTurn)
            and frame.if_busy == StartTurn.IF_BUSY_INTERRUPT
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Manner:
    """How a stream is used."""

    attachment_id: str = ""
    """Empty: an older stream is taken over."""
    breaks_after: int = 0
    """The client itself breaks the stream behind so many frames, once; 0: never."""
    max_unacked_events: int = 0
    half_closes: bool = False
    """Whether it half-closes as soon as all is sent, instead of at the end."""


class Talk:
    """Steps on one session, carried out to the end of their turns."""

    def __init__(
        self, stub: SessionServiceStub, victim: Victim, tally: Tally, session: SessionNotes
    ) -> None:
        self._stub = stub
        self._victim = victim
        self._tally = tally
        self._session = session
        self._steps: list[Step] = []
        self._by_id: dict[str, TurnNotes] = {}
        self._num_told: dict[str, int] = {}
        self._manner = Manner()
        self._num_streams = 0
        self._life = 0
        self._num_frames = 0
        self._patience = Patience(tally, session.name)

    async def run(self, steps: Sequence[Step], manner: Manner) -> list[TurnNotes]:
        """Returns the turns in order, all ended.

        Raises:
            RefusedError: a turn was refused.
            ViolationError: the server broke its word.
        """
        self._steps = list(steps)
        self._manner = manner
        self._by_id = {step.turn.turn_id: step.turn for step in steps}
        while self._open_turns():
            try:
                await self._stream()
            except (BrokenError, TimeoutError) as error:
                self._tally.counts["streams_broken"] += 1
                await self._patience.rest(error)
        return list(self._by_id.values())

    def _open_turns(self) -> list[TurnNotes]:
        return [turn for turn in self._by_id.values() if turn.end is None]

    async def _stream(self) -> None:
        self._life = self._victim.num_lives
        call: Call = self._stub.Converse(wait_for_ready=True)
        try:
            await self._open(call)
            await self._exchange(call)
            if not self._manner.half_closes:
                await call.done_writing()
            while (frame := await self._read(call)) is not None:
                self._take(frame)
        except grpc.aio.AioRpcError as error:
            verdict = verdict_of(error)
            raise self._as_broken(verdict) from error
        except asyncio.InvalidStateError as error:  # Writing to a call that has ended.
            raise BrokenError("the stream has ended") from error
        finally:
            call.cancel()

    def _as_broken(self, verdict: BrokenError | RefusedError) -> Exception:
        if isinstance(verdict, BrokenError) or verdict.passes:
            return BrokenError(str(verdict))
        # Only acknowledged turns are named.
        kind = Kind.LOST if verdict.reason == "TURN_NOT_FOUND" else Kind.REFUSED
        return ViolationError(kind, f"{self._session.name}: a stream ended with {verdict}")

    async def _open(self, call: Call) -> None:
        resume = []
        for turn in self._open_turns():
            if turn.accepted:
                turn.go_on()
                resume.append(turn.cursor())
            else:
                turn.begin_again()
        for step in self._steps:
            step.sent = step.sent and step.turn.accepted and not step.cancels
        again = self._num_streams > 0
        self._num_streams += 1
        self._tally.counts["streams"] += 1
        self._tally.counts["streams_resumed"] += bool(resume)
        opening = OpenSession(
            name=self._session.name,
            resume=resume,
            attachment_id=self._manner.attachment_id,
            take_over=again and not self._manner.attachment_id,
            max_unacked_events=self._manner.max_unacked_events,
        )
        await call.write(ConverseRequest(frame_id="open", open=opening))
        frame = await self._read(call)
        if frame is None or not frame.HasField("opened"):
            raise BrokenError("the stream ended before it was opened")
        if frame.opened.session.name != self._session.name:
            raise ViolationError(Kind.LINEAGE, f"{frame.opened.session.name} was opened instead")

    async def _exchange(self, call: Call) -> None:
        """Sends and reads until all turns have ended."""
        half_closed = False
        while self._open_turns():
            await self._send_due(call)
            if self._manner.half_closes and not half_closed and self._all_sent():
                half_closed = True
                await call.done_writing()
            frame = await self._read(call)
            if frame is None:
                raise BrokenError("the stream ended before its turns did")
            self._take(frame)
            if self._manner.max_unacked_events and not half_closed:
                await self._acknowledge(call, frame.turn_event)
            if self._num_frames == self._manner.breaks_after:
                raise BrokenError("we broke it ourselves")

    def _all_sent(self) -> bool:
        return all(step.sent for step in self._steps)

    async def _send_due(self, call: Call) -> None:
        for step in self._steps:
            if step.sent or not self._is_due(step):
                continue
            turn = step.turn
            if step.cancels:
                turn.stopped = True
                cancel = CancelRequest(turn_id=turn.turn_id, discard_partial=step.discards)
                request = ConverseRequest(frame_id="cancel", cancel=cancel)
            elif isinstance(turn.frame, StartTurn):
                request = ConverseRequest(frame_id=turn.turn_id, generate=turn.frame)
            else:
                request = ConverseRequest(frame_id=turn.turn_id, append=turn.frame)
            if step.interrupts:
                for earlier in self._by_id.values():
                    if earlier is turn:
                        break
                    earlier.stopped = True
            await call.write(request)
            step.sent = True

    def _is_due(self, step: Step) -> bool:
        if step.cancels and (step.turn.end is not None or not step.turn.accepted):
            return False
        if step.behind is None or step.behind.end is not None:
            return True
        return self._num_told.get(step.behind.turn_id, 0) >= step.num_events

    async def _read(self, call: Call) -> ConverseResponse | None:
        frame = await asyncio.wait_for(call.read(), ANSWER_LIMIT_S)
        if frame is not grpc.aio.EOF:
            self._num_frames += 1
            return frame
        if await call.code() is not grpc.StatusCode.OK:
            # Raises what it ended with.
            await call
        return None

    async def _acknowledge(self, call: Call, event: TurnEvent) -> None:
        if event.sequence:
            place = TurnCursor(turn_id=event.turn_id, epoch=event.epoch, sequence=event.sequence)
            await call.write(ConverseRequest(frame_id="ack", ack=place))

    def _take(self, frame: ConverseResponse) -> None:
        kind = frame.WhichOneof("frame")
        if kind == "rejected":
            self._take_rejected(frame)
        elif kind == "turn_event":
            event = frame.turn_event
            turn = self._by_id.get(event.turn_id)
            if turn is None:
                raise ViolationError(
                    Kind.UNRESUMED, f"{self._session.name} tells of {event.turn_id} unasked"
                )
            take_event(turn, event, teller=Teller(self._victim, self._life), tally=self._tally)
            self._num_told[event.turn_id] = self._num_told.get(event.turn_id, 0) + 1
            self._patience.renew()

    def _take_rejected(self, frame: ConverseResponse) -> None:
        failure = frame.rejected.failure
        refused = RefusedError(failure.reason, failure.message)
        turn = self._by_id.get(frame.rejected.turn_id)
        frame_id = frame.rejected.frame_id
        if turn is None or frame_id in ("cancel", "ack") or not refused.passes:
            raise ViolationError(Kind.REFUSED, f"{self._session.name}: {frame_id}: {refused}")
        self._tally.counts["frames_rejected"] += 1
        for step in self._steps:
            if step.turn is turn and not step.cancels and not turn.accepted:
                step.sent = False


@dataclass(frozen=True, slots=True)
class Teller:
    """Who tells of a turn."""

    victim: Victim
    life: int
    """The victim's lives as the call was made."""


def take_event(turn: TurnNotes, event: TurnEvent, *, teller: Teller, tally: Tally) -> None:
    """Takes a turn's event in, and counts it. Raises ViolationError."""
    victim = teller.victim
    was_accepted, was_ended = turn.accepted, turn.end is not None
    turn.feed(event, life=teller.life)
    tally.counts["events"] += 1
    tally.counts["resets"] += event.HasField("reset")
    tally.counts["calls"] += event.HasField("tool_call")
    if turn.accepted and not was_accepted:
        turn.accepted_at_kill = victim.num_kills
        tally.counts["turns_acknowledged"] += 1
    if turn.end is not None and not was_ended:
        tally.counts[f"turns_{event.WhichOneof('event')}"] += 1
        tally.counts["turns_struck"] += victim.num_kills > turn.accepted_at_kill
        if event.HasField("failed"):
            check_failure(turn)


def check_failure(turn: TurnNotes) -> None:
    """Raises ViolationError where a turn must not have failed."""
    assert turn.end is not None
    failure = turn.end.failed
    cancelled = grpc.StatusCode.CANCELLED.value[0]
    if turn.stopped and failure.code == cancelled:
        return
    if turn.may_be_stale and failure.reason == "STALE_HEAD":
        return
    raise ViolationError(
        Kind.LOST, f"{turn.turn_id} was acknowledged and failed: {failure.reason} {failure.message}"
    )
