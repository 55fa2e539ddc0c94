"""Many independent generations over one call: fewer messages where there are many."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Self

import grpc
from antiphon.v1 import inference_pb2, inference_pb2_grpc, types_pb2
from grpc import aio

from antiphon_client.channel import Connection, duration
from antiphon_client.errors import ErrorDetails, ServerError
from antiphon_client.failures import error_of, from_failure, from_rpc_error
from antiphon_client.streams import GenerationStream

MAX_UNREAD_BYTES: Final = 4 << 20
"""What may wait for the readers of one call before the server is held back."""

_Event = inference_pb2.StreamGenerateResponse
_Call = aio.StreamStreamCall[
    inference_pb2.MultiplexGenerateRequest, inference_pb2.MultiplexGenerateResponse
]


@dataclass(slots=True)
class _Inbox:
    """The events of one request that were not read yet."""

    events: deque[_Event] = field(default_factory=deque)
    failure: ServerError | None = None
    is_over: bool = False
    is_left: bool = False
    news: asyncio.Event = field(default_factory=asyncio.Event)


class SharedCall:
    """One call that carries many generations. Use it as an asynchronous context manager.

    Read all of them, or cancel those that are not to be read: what waits for its reader is
    bounded for all together. Where the call breaks, all that run on it fail.

    Attributes:
        go_away: Set where the server is about to end the call: start what is new on another.
    """

    def __init__(self, connection: Connection) -> None:
        self.go_away: types_pb2.GoAway | None = None
        self._connection = connection
        self._inboxes: dict[int, _Inbox] = {}
        self._unread_bytes = 0
        self._room = asyncio.Event()
        self._next_tag = 1
        self._write_lock = asyncio.Lock()
        self._call: _Call | None = None
        self._reader: asyncio.Task[None] | None = None
        self._ended: ServerError | None = None
        self._cancelling: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def open(self) -> None:
        """Begins the call."""
        assert self._call is None, "a shared call is opened once"
        stub = inference_pb2_grpc.InferenceServiceStub(self._connection.channel)
        self._call = stub.MultiplexGenerate(metadata=self._connection.metadata)
        self._reader = asyncio.create_task(self._read(self._call))

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends the call and all that still run on it. Idempotent."""
        if self._call is None or self._reader is None:
            return
        self._call.cancel()
        self._reader.cancel()
        for task in self._cancelling:
            task.cancel()
        await asyncio.wait([self._reader, *self._cancelling])

    async def generate(
        self,
        request: inference_pb2.GenerateRequest,
        *,
        cache_scope: str = "",
        timeout_s: float | None = None,
    ) -> GenerationStream:
        """Starts a generation and returns its events.

        Args:
            request: What to generate; `generate_request` makes one.
            cache_scope: Whom it shares cached prefixes with, within the caller's tenant.
            timeout_s: The server fails it where it has not ended by then.

        Raises:
            ServerError: the call has ended.
        """
        tag, self._next_tag = self._next_tag, self._next_tag + 1
        inbox = self._inboxes[tag] = _Inbox()
        await self._write(
            inference_pb2.MultiplexGenerateRequest(
                tag=tag,
                generate=request,
                cache_scope=cache_scope,
                timeout=None if timeout_s is None else duration(timeout_s),
            )
        )

        def cancel() -> None:
            if tag in self._inboxes:
                self._leave(inbox)
                task = asyncio.create_task(self._cancel(tag))
                self._cancelling.add(task)
                task.add_done_callback(self._cancelling.discard)

        return GenerationStream(self._events_of(inbox), cancel)

    async def _cancel(self, tag: int) -> None:
        instruction = inference_pb2.CancelGeneration()
        with suppress(ServerError):
            await self._write(inference_pb2.MultiplexGenerateRequest(tag=tag, cancel=instruction))

    async def _write(self, frame: inference_pb2.MultiplexGenerateRequest) -> None:
        assert self._call is not None, "enter the shared call first"
        async with self._write_lock:
            if self._ended is not None:
                raise self._ended
            try:
                await self._call.write(frame)
            except aio.AioRpcError as error:
                raise from_rpc_error(error) from None
            except asyncio.InvalidStateError:
                raise self._ended or _call_over() from None

    async def _read(self, call: _Call) -> None:
        failure = _call_over()
        try:
            while isinstance(frame := await call.read(), inference_pb2.MultiplexGenerateResponse):
                for event in frame.events:
                    self._take(event)
                if frame.HasField("go_away"):
                    self.go_away = frame.go_away
                while self._unread_bytes > MAX_UNREAD_BYTES:
                    self._room.clear()
                    await self._room.wait()
        except aio.AioRpcError as error:
            failure = from_rpc_error(error)
        finally:
            self._ended = failure
            for inbox in self._inboxes.values():
                inbox.failure = failure
                inbox.news.set()
            self._inboxes.clear()

    def _take(self, tagged: inference_pb2.TaggedEvent) -> None:
        inbox = self._inboxes.get(tagged.tag)
        if inbox is None:
            return
        if tagged.HasField("failed"):
            inbox.failure = from_failure(tagged.failed)
            del self._inboxes[tagged.tag]
        elif tagged.HasField("generation"):
            if tagged.generation.HasField("completed"):
                inbox.is_over = True
                del self._inboxes[tagged.tag]
            if not inbox.is_left:
                inbox.events.append(tagged.generation)
                self._unread_bytes += tagged.generation.ByteSize()
        inbox.news.set()

    def _leave(self, inbox: _Inbox) -> None:
        """Drops what a cancelled request still brings but its end."""
        inbox.is_left = True
        self._unread_bytes -= sum(event.ByteSize() for event in inbox.events)
        inbox.events.clear()
        inbox.failure = error_of(
            ErrorDetails(code=grpc.StatusCode.CANCELLED, message="the generation was cancelled")
        )
        inbox.news.set()
        self._room.set()

    async def _events_of(self, inbox: _Inbox) -> AsyncIterator[_Event]:
        while True:
            while inbox.events:
                event = inbox.events.popleft()
                self._unread_bytes -= event.ByteSize()
                self._room.set()
                yield event
            if inbox.failure is not None:
                raise inbox.failure
            if inbox.is_over:
                return
            inbox.news.clear()
            await inbox.news.wait()


def _call_over() -> ServerError:
    return error_of(
        ErrorDetails(code=grpc.StatusCode.CANCELLED, message="the shared call has ended")
    )
