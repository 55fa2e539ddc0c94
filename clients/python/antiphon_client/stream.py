"""One stream of a session, from its opening to its end."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol, Self

import grpc
from antiphon.v1 import session_pb2, session_pb2_grpc
from grpc import aio

from antiphon_client.channel import Connection
from antiphon_client.errors import ErrorDetails, ServerError
from antiphon_client.failures import error_of, from_rpc_error
from antiphon_client.transcript import Gap

_Call = aio.StreamStreamCall[session_pb2.ConverseRequest, session_pb2.ConverseResponse]


class Frames(Protocol):
    """What a stream is to write."""

    wake: asyncio.Event
    """Set where there is something new."""

    def next_frame(self) -> session_pb2.ConverseRequest | None:
        """Returns the next frame; None: there is none now."""

    def are_over(self) -> bool:
        """Returns whether no more come on this stream."""


class ConverseStream:
    """One call of Converse; reads and writes until it ends."""

    def __init__(self, call: _Call) -> None:
        self._call = call

    @classmethod
    async def open(
        cls, connection: Connection, opening: session_pb2.OpenSession, *, timeout_s: float
    ) -> tuple[Self, session_pb2.Session]:
        """Returns a stream that is attached, and the session as it stands.

        Raises:
            ServerError: it was refused, or there was no answer in time.
        """
        stub = session_pb2_grpc.SessionServiceStub(connection.channel)
        call = stub.Converse(metadata=connection.metadata)
        try:
            async with asyncio.timeout(timeout_s):
                session = await _opened(call, opening)
        except TimeoutError:
            raise _failure(
                grpc.StatusCode.DEADLINE_EXCEEDED, f"no answer in {timeout_s:g} s"
            ) from None
        except BaseException:
            call.cancel()
            raise
        return cls(call), session

    def cancel(self) -> None:
        """Ends it at once."""
        self._call.cancel()

    async def run(
        self, frames: Frames, take: Callable[[session_pb2.ConverseResponse], None]
    ) -> ServerError | None:
        """Writes `frames` and hands what comes to `take`, up to the end.

        Returns:
            Why it ended; None: well.
        """
        writer = asyncio.create_task(self._write(frames))
        try:
            while (response := await self.read()) is not None:
                take(response)
        except ServerError as error:
            return error
        except Gap as gap:
            return events_missing(gap)
        finally:
            self._call.cancel()
            writer.cancel()
            await asyncio.wait([writer])
        return None

    async def read(self) -> session_pb2.ConverseResponse | None:
        """Returns the next frame; None: the stream has ended well.

        Raises:
            ServerError: the stream has ended.
        """
        try:
            # `read` as in the opening: a call's iterator can't take over from it.
            response = await self._call.read()
        except aio.AioRpcError as error:
            raise from_rpc_error(error) from None
        return response if isinstance(response, session_pb2.ConverseResponse) else None

    async def _write(self, frames: Frames) -> None:
        """Writes until the frames are over; where the call has ended, reading tells why."""
        with suppress(aio.AioRpcError, asyncio.InvalidStateError):
            while True:
                frames.wake.clear()
                while (frame := frames.next_frame()) is not None:
                    await self._call.write(frame)
                if frames.are_over():
                    await self._call.done_writing()
                    return
                await frames.wake.wait()


async def _opened(call: _Call, opening: session_pb2.OpenSession) -> session_pb2.Session:
    try:
        with suppress(asyncio.InvalidStateError):  # over already: reading tells why
            await call.write(session_pb2.ConverseRequest(open=opening))
        first = await call.read()
    except aio.AioRpcError as error:
        raise from_rpc_error(error) from None
    if not isinstance(first, session_pb2.ConverseResponse) or not first.HasField("opened"):
        raise _failure(grpc.StatusCode.DATA_LOSS, "the stream's first frame was not `opened`")
    return first.opened.session


def events_missing(gap: Gap) -> ServerError:
    """Returns the failure of a stream that left events out."""
    return _failure(grpc.StatusCode.DATA_LOSS, str(gap))


def _failure(code: grpc.StatusCode, message: str) -> ServerError:
    return error_of(ErrorDetails(code=code, message=message))
