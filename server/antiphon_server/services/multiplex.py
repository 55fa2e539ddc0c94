"""One stream of many independent requests: instructions come in, shared frames go out."""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, closing
from dataclasses import dataclass
from typing import Final

import structlog
from antiphon.v1.inference_pb2 import (
    GenerationCompleted,
    MultiplexGenerateRequest,
    MultiplexGenerateResponse,
    OutputFinished,
    StreamGenerateResponse,
    TaggedEvent,
)
from antiphon.v1.types_pb2 import FINISH_REASON_CANCELLED, GoAway

from antiphon_engine.api.errors import AntiphonError, ErrorReason, FieldViolation, InvalidRequest
from antiphon_server.generation import Generation
from antiphon_server.generation_spec import GenerationSpec
from antiphon_server.request_preparation import Checked, RequestPreparation, start_of
from antiphon_server.services.multiplex_instructions import Cancel, InstructionReader, Start
from antiphon_server.services.outbox import Outbox
from antiphon_server.services.stream_events import stream_events
from antiphon_server.status import to_failure
from antiphon_server.telemetry.request_record import RequestKind
from antiphon_server.telemetry.request_recorder import RequestRecorder
from antiphon_server.telemetry.telemetry import Telemetry
from antiphon_server.times import NS_PER_S

MAX_WAITING: Final = 64
"""Requests that are read ahead while as many run as may, so that cancels get through."""

MAX_RENDERING: Final = 4
"""Prompts of a stream that are rendered at a time; the threads for that are everyone's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MultiplexLimits:
    """Bounds on one stream."""

    max_running: int = 256
    max_waiting_bytes: int = 16 << 20
    """What requests whose prompt has not been rendered may take, beside the last one read."""
    max_undelivered_bytes: int = 1 << 20
    """What may wait for the reader before the requests are held, beside an event of each."""
    grace_s: float = 30.0
    """How long a reader may stay away then."""


class MultiplexedStream:
    """The requests of one stream, each under its tag. Used on one event loop.

    Each request is worked on by a task; what they tell meets in an outbox, whose frames `frames`
    yields. A tag is taken until its last event is in the outbox.
    """

    def __init__(
        self,
        preparation: RequestPreparation,
        reader: InstructionReader,
        *,
        limits: MultiplexLimits,
        telemetry: Telemetry | None = None,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._telemetry = telemetry or Telemetry()
        self._preparation = preparation
        self._reader = reader
        self._limits = limits
        self._clock_ns = clock_ns
        self._requests: dict[int, _Request] = {}
        self._slots = asyncio.Semaphore(limits.max_running)
        self._rendering = asyncio.Semaphore(MAX_RENDERING)
        self._waiting_bytes = 0
        self._outbox = Outbox(
            max_bytes=limits.max_undelivered_bytes, on_full=self._hold, on_room=self._go_on
        )
        self._wake = asyncio.Event()
        self._room = asyncio.Event()
        self._incoming: asyncio.Task[None] | None = None
        self._go_away: GoAway | None = None
        self._end: AntiphonError | None = None
        self._closed = False
        self._progress_s = 0.0  # When the reader took something last, on the loop's clock.
        self._grace: asyncio.TimerHandle | None = None

    @property
    def num_requests(self) -> int:
        """Requests whose last event is not on its way."""
        return len(self._requests)

    async def frames(
        self, instructions: AsyncIterator[MultiplexGenerateRequest]
    ) -> AsyncGenerator[MultiplexGenerateResponse, None]:
        """Yields the frames for the caller; may be called once.

        Raises:
            AntiphonError: the stream ends with that.
        """
        self._incoming = asyncio.create_task(self._receive(instructions))
        self._incoming.add_done_callback(lambda _: self._wake.set())
        while True:
            self._wake.clear()
            told = False
            if go_away := self._go_away:
                self._go_away, told = None, True
                yield MultiplexGenerateResponse(go_away=go_away)
            while (frame := self._outbox.take()) is not None:
                self._progress_s, told = asyncio.get_running_loop().time(), True
                yield frame
            if told:
                continue
            if self._incoming.done() and not self._incoming.cancelled():
                self._incoming.result()
            if not self._requests and self._end is not None:
                raise self._end
            if not self._requests and self._incoming.done():
                return
            await self._wake.wait()

    def send_away(self, go_away: GoAway, end: AntiphonError) -> None:
        """Tells the caller, takes no more requests, and ends once none runs. Idempotent."""
        if self._end is None:
            self._go_away, self._end = go_away, end
            self._wake.set()

    def cut_off(self, end: AntiphonError) -> None:
        """Fails what runs, and ends. Idempotent."""
        self._end = end
        for request in list(self._requests.values()):
            request.stop(end)
        self._wake.set()

    def close(self) -> None:
        """Lets go of all requests at once. Idempotent; never waits."""
        if self._closed:
            return
        self._closed = True
        if self._incoming is not None:
            self._incoming.cancel()
        if self._grace is not None:
            self._grace.cancel()
        self._drop_all()

    async def _receive(self, instructions: AsyncIterator[MultiplexGenerateRequest]) -> None:
        """Carries out what comes in, in order, and reads on as long as there is room for more."""
        async for frame in instructions:
            try:
                await self._carry_out(frame)
            except AntiphonError as error:
                if frame.tag in self._requests:
                    # Told under the tag, it would pass for the end of the request that runs.
                    raise
                self._tell(TaggedEvent(tag=frame.tag, failed=to_failure(error)))
            while self._crowded:
                self._room.clear()
                await self._room.wait()

    @property
    def _crowded(self) -> bool:
        return (
            len(self._requests) >= self._limits.max_running + MAX_WAITING
            or self._waiting_bytes > self._limits.max_waiting_bytes
            or self._outbox.full
        )

    async def _carry_out(self, frame: MultiplexGenerateRequest) -> None:
        instruction = await self._reader.read(frame)
        if isinstance(instruction, Cancel):
            if request := self._requests.get(instruction.tag):
                request.cancel()
            return
        if instruction.tag in self._requests:
            raise InvalidRequest(
                FieldViolation(
                    "tag",
                    f"{instruction.tag} is the tag of a request that runs; choose one that is free",
                )
            )
        if self._end is not None:
            raise self._end
        checked = self._preparation.check(instruction.request, instruction.terms)
        self._start(instruction, checked)

    def _start(self, start: Start, checked: Checked) -> None:
        request = _Request(start.tag, num_outputs=checked.num_outputs, size_bytes=start.size_bytes)
        self._requests[start.tag] = request
        self._waiting_bytes += request.waiting_bytes
        request.task = asyncio.create_task(self._run(request, start, checked))
        request.task.add_done_callback(lambda task: self._settle(request, task))

    async def _run(self, request: "_Request", start: Start, checked: Checked) -> None:
        """Works on a request from its place in the line to its last event.

        Raises:
            AntiphonError: it failed.
        """
        asked = start_of(start.request, start.terms, RequestKind.MULTIPLEXED)
        with self._telemetry.begin_request(asked) as recorder:
            spec = await self._render(request, start, checked, recorder)
            self._end_wait(request)
            with closing(checked.generator.start(spec)) as generation:
                recorder.follow(generation, spec)
                await self._tell_of(request, generation)

    async def _render(
        self, request: "_Request", start: Start, checked: Checked, recorder: RequestRecorder
    ) -> GenerationSpec:
        """Waits until a request may run, and renders its prompt. Raises AntiphonError."""
        try:
            async with asyncio.timeout(self._left_s(start)):
                await self._slots.acquire()
                request.has_slot = True
                async with self._rendering:
                    return await self._preparation.render(
                        start.request, checked, start.terms, recorder
                    )
        except TimeoutError:
            raise AntiphonError(
                ErrorReason.TIMEOUT, "the deadline passed before the request could be queued"
            ) from None

    async def _tell_of(self, request: "_Request", generation: Generation) -> None:
        """Tells what comes of a request, to its last event. Raises AntiphonError."""
        request.generation = generation
        if self._outbox.full:
            generation.hold()
        generation.tell_at_once(
            lambda delta: self._tell(_tagged(request.tag, StreamGenerateResponse(delta=delta))),
            may_take=lambda: not self._outbox.full,
        )
        async with aclosing(stream_events(generation)) as events:
            async for event in events:
                tagged = _tagged(request.tag, event)
                if event.HasField("completed"):
                    self._forget(request)
                    self._tell(tagged)
                    return
                self._tell(tagged)
                while self._outbox.full:
                    request.room.clear()
                    await request.room.wait()

    def _end_wait(self, request: "_Request") -> None:
        """Says that a request no longer takes room before it is submitted. Idempotent."""
        self._waiting_bytes -= request.waiting_bytes
        request.waiting_bytes = 0
        self._room.set()

    def _left_s(self, start: Start) -> float | None:
        deadline_ns = start.terms.deadline_ns
        return None if deadline_ns is None else (deadline_ns - self._clock_ns()) / NS_PER_S

    def _tell(self, event: TaggedEvent) -> None:
        self._outbox.add(event)
        self._wake.set()

    def _settle(self, request: "_Request", task: "asyncio.Task[None]") -> None:
        """Tells how a request ended, where its last event has not done that."""
        if request.has_slot:
            self._slots.release()
        self._forget(request)
        self._end_wait(request)
        error = None if task.cancelled() else task.exception()
        if request.dropped:
            return
        if task.cancelled() and request.error is None:
            for event in _cancelled_events(request.num_outputs):
                self._tell(TaggedEvent(tag=request.tag, generation=event))
        elif failure := self._error_of(request, error):
            self._tell(TaggedEvent(tag=request.tag, failed=to_failure(failure)))
        self._wake.set()

    def _error_of(self, request: "_Request", error: BaseException | None) -> AntiphonError | None:
        if error is None or isinstance(error, AntiphonError):
            return error or request.error
        structlog.get_logger().error("request failed", tag=request.tag, exc_info=error)
        return AntiphonError(
            ErrorReason.INTERNAL, "an internal error; the server's log tells more of it"
        )

    def _forget(self, request: "_Request") -> None:
        if self._requests.get(request.tag) is request:
            del self._requests[request.tag]

    def _hold(self) -> None:
        """Has the engine rest until the reader has caught up, within the time that it is given."""
        for request in self._requests.values():
            if request.generation is not None:
                request.generation.hold()
        loop = asyncio.get_running_loop()
        self._progress_s = loop.time()
        self._grace = loop.call_later(self._limits.grace_s, self._look_for_reader)

    def _go_on(self) -> None:
        if self._grace is not None:
            self._grace.cancel()
        self._room.set()
        for request in self._requests.values():
            request.room.set()
            if request.generation is not None:
                request.generation.release()

    def _look_for_reader(self) -> None:
        loop = asyncio.get_running_loop()
        left_s = self._progress_s + self._limits.grace_s - loop.time()
        if left_s > 0:
            self._grace = loop.call_later(left_s, self._look_for_reader)
            return
        # The frame that the transport has is still read first, by a reader that comes back.
        self._end = _slow_consumer(self._outbox.size_bytes, self._limits)
        self._drop_all()
        self._outbox.clear()
        self._wake.set()

    def _drop_all(self) -> None:
        requests, self._requests = self._requests, {}
        for request in requests.values():
            request.drop()


class _Request:
    """A request under its tag."""

    def __init__(self, tag: int, *, num_outputs: int, size_bytes: int) -> None:
        self.tag: Final = tag
        self.num_outputs: Final = num_outputs
        self.waiting_bytes = size_bytes
        """What it takes until it is submitted."""
        self.room: Final = asyncio.Event()
        self.task: asyncio.Task[None] | None = None
        self.generation: Generation | None = None
        """None: it has not been submitted."""
        self.has_slot = False
        self.error: AntiphonError | None = None
        """Why it was stopped before it was submitted."""
        self.dropped = False

    def cancel(self) -> None:
        """Asks for an early end. Idempotent."""
        if self.generation is not None:
            self.generation.cancel()
        elif self.task is not None:
            self.task.cancel()

    def stop(self, error: AntiphonError) -> None:
        """Makes it fail. Idempotent."""
        if self.generation is not None:
            self.generation.fail(error)
        elif self.task is not None:
            self.error = error
            self.task.cancel()

    def drop(self) -> None:
        """Ends it without a word."""
        self.dropped = True
        if self.generation is not None:
            self.generation.close()
        if self.task is not None:
            self.task.cancel()


def _tagged(tag: int, event: StreamGenerateResponse) -> TaggedEvent:
    return TaggedEvent(tag=tag, generation=event)


def _cancelled_events(num_outputs: int) -> list[StreamGenerateResponse]:
    """Returns what is told of a request that was cancelled before it was submitted."""
    ends = [
        OutputFinished(output_index=index, finish_reason=FINISH_REASON_CANCELLED)
        for index in range(num_outputs)
    ]
    return [
        *(StreamGenerateResponse(output_finished=end) for end in ends),
        StreamGenerateResponse(completed=GenerationCompleted()),
    ]


def _slow_consumer(size_bytes: int, limits: MultiplexLimits) -> AntiphonError:
    return AntiphonError(
        ErrorReason.SLOW_CONSUMER,
        f"{size_bytes} bytes waited and nothing was read for {limits.grace_s:g} s; the requests of"
        f" this stream were ended. Read on while requests run, or run fewer at a time.",
        metadata={
            "undelivered_bytes": str(size_bytes),
            "limit_bytes": str(limits.max_undelivered_bytes),
            "grace_s": f"{limits.grace_s:g}",
            "resumable": "false",
        },
    )
