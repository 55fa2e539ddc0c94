"""A caller without manners: any bytes to any method, frames in any order, and no goodbyes."""

import asyncio
import random
import socket
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import grpc
from antiphon.v1 import admin_pb2, inference_pb2, model_pb2, session_pb2
from antiphon.v1.inference_pb2 import CancelGeneration, GenerateRequest, MultiplexGenerateRequest
from antiphon.v1.session_pb2 import (
    AppendItems,
    CancelRequest,
    ConverseRequest,
    CreateSessionRequest,
    OpenSession,
    RunTurnRequest,
    StartTurn,
    TurnCursor,
)
from antiphon.v1.types_pb2 import GenerationConfig, Prompt, StopConditions
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2

from support.random_messages import change_one, draw_message, garble
from support.session_rows import user

METHODS: Final[Sequence[MethodDescriptor]] = [
    method
    for module in (admin_pb2, inference_pb2, model_pb2, session_pb2, health_pb2)
    for service in module.DESCRIPTOR.services_by_name.values()
    for method in service.methods
    if method.name != "Drain"
]
"""All but the one behind which nothing is answered."""

_CONFIG: Final = GenerationConfig(stop=StopConditions(max_output_tokens=12))
_TURN: Final = StartTurn(items=[user("hi")], config=_CONFIG)
_GENERATE: Final = GenerateRequest(prompt=Prompt(text="go on"), config=_CONFIG)
_VALID: Final[dict[str, Sequence[Message]]] = {
    "GenerateRequest": [_GENERATE],
    "MultiplexGenerateRequest": [
        MultiplexGenerateRequest(tag=1, generate=_GENERATE),
        MultiplexGenerateRequest(tag=2, generate=_GENERATE),
        MultiplexGenerateRequest(tag=1, cancel=CancelGeneration()),
    ],
    "CreateSessionRequest": [CreateSessionRequest(items=[user("hi")])],
    "RunTurnRequest": [RunTurnRequest(session="sessions/fuzz", turn=_TURN)],
    "ConverseRequest": [
        ConverseRequest(open=OpenSession(name="sessions/fuzz", take_over=True)),
        ConverseRequest(open=OpenSession(create=CreateSessionRequest())),
        ConverseRequest(generate=_TURN),
        ConverseRequest(generate=StartTurn(turn_id="t2", items=[user("hi")], config=_CONFIG)),
        ConverseRequest(append=AppendItems(items=[user("and")])),
        ConverseRequest(cancel=CancelRequest(turn_id="t2")),
        ConverseRequest(ack=TurnCursor(turn_id="t2", sequence=2)),
    ],
}
_LIMIT_S: Final = 30.0
_FAULTS: Final = (
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.DATA_LOSS,
)
_OWN_FAULT: Final = "Internal error from Core"
"""What the client's library says of itself where a write meets the end of its call."""
_HTTP2_START: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


@dataclass
class RudeCaller:
    """Calls a server in every wrong way, and counts how that ends."""

    channel: grpc.aio.Channel
    admin_channel: grpc.aio.Channel
    ports: Sequence[tuple[str, int]]
    source: random.Random
    ends: Counter[str] = field(default_factory=Counter)
    """By method and status."""
    faults: list[str] = field(default_factory=list)
    """Statuses that no caller should ever see, with their details."""

    async def call_some(self, num_calls: int, *, num_at_once: int = 8) -> None:
        """Makes so many calls; each ends within a limit, or this raises TimeoutError."""
        places = asyncio.Semaphore(num_at_once)

        async def one() -> None:
            async with places, asyncio.timeout(_LIMIT_S):
                await self._call()

        await asyncio.gather(*(one() for _ in range(num_calls)))

    async def _call(self) -> None:
        if self.source.random() < 0.03:
            await asyncio.to_thread(self._throw_bytes, self.source.choice(self.ports))
            return
        method = self.source.choice(METHODS)
        status, details = await self.call(method)
        if status in _FAULTS and details != _OWN_FAULT:
            self.faults.append(f"{method.name}: {status.name}: {details}")
        self.ends[f"{method.name} {status.name}"] += 1

    async def call(self, method: MethodDescriptor) -> tuple[grpc.StatusCode, str]:
        """Calls a method once; returns the status and its details."""
        service = method.containing_service.full_name
        assert service is not None
        is_admin = service.endswith("AdminService") or self.source.random() < 0.02
        channel = self.admin_channel if is_admin else self.channel
        path = f"/{service}/{method.name}"
        if method.client_streaming:
            return await self._talk(channel.stream_stream(path)(), method)
        data = self._draw(method)
        if method.server_streaming:
            return await self._listen(channel.unary_stream(path)(data), method)
        call = channel.unary_unary(path)(data)
        if self.source.random() < 0.2:
            await asyncio.sleep(self.source.choice((0, 0.001, 0.01)))
            call.cancel()
        return await _end_of(call)

    def _draw(self, method: MethodDescriptor) -> bytes:
        """Returns what stands for a request: valid, nearly so, of the right type, or anything."""
        known = _VALID.get(method.input_type.name)
        way = self.source.random()
        if known and way < 0.75:
            message = type(known[0])()
            message.CopyFrom(self.source.choice(known))
            if way > 0.4:
                change_one(message, self.source)
        else:
            message = draw_message(method.input_type, self.source)
        data = message.SerializeToString()
        # What can't be read never reaches services of other packages: the transport answers.
        is_own = method.containing_service.full_name.startswith("antiphon.")
        return garble(data, self.source) if is_own and self.source.random() < 0.2 else data

    async def _listen(
        self, call: grpc.aio.UnaryStreamCall, method: MethodDescriptor
    ) -> tuple[grpc.StatusCode, str]:
        """Reads a stream to its end, where it has one, or loses interest."""
        if "Watch" not in method.name and self.source.random() < 0.6:
            while await _read(call):
                pass
            return await _end_of(call)
        for _ in range(self.source.randrange(4)):
            if not await _read_soon(call):
                break
        call.cancel()
        return await _end_of(call)

    async def _talk(
        self, call: grpc.aio.StreamStreamCall, method: MethodDescriptor
    ) -> tuple[grpc.StatusCode, str]:
        """Writes, reads, half-closes and hangs up as it comes."""
        half_closed = False
        for _ in range(self.source.randrange(1, 12)):
            move = self.source.random()
            if move < 0.7 and not half_closed:
                if not await _write(call, self._draw(method)):
                    return await _end_of(call)
            elif move < 0.9:
                if not await _read_soon(call):
                    return await _end_of(call)
            elif move < 0.95:
                half_closed = half_closed or await _half_close(call)
            else:
                break
        if self.source.random() < 0.4:
            call.cancel()
        elif not half_closed:
            await _half_close(call)
        while await _read(call):
            pass
        return await _end_of(call)

    def _throw_bytes(self, port: tuple[str, int]) -> None:
        """Sends what is no HTTP/2 to a port, or stops to be."""
        rest = self.source.randbytes(self.source.choice((0, 9, 200)))
        start = self.source.choice((b"", _HTTP2_START[:10], _HTTP2_START))
        with socket.create_connection(port, timeout=_LIMIT_S) as connection:
            connection.sendall(start + rest)


async def _end_of(call: grpc.aio.Call) -> tuple[grpc.StatusCode, str]:
    return await call.code(), await call.details() or ""


async def _read(call: grpc.aio.UnaryStreamCall | grpc.aio.StreamStreamCall) -> bool:
    """Reads a message; False: the call has ended."""
    try:
        return await call.read() is not grpc.aio.EOF
    except (grpc.aio.AioRpcError, asyncio.CancelledError):
        if not call.done():
            raise
        return False


async def _read_soon(call: grpc.aio.UnaryStreamCall | grpc.aio.StreamStreamCall) -> bool:
    """Reads a message, or hangs up where none comes; False: the call has ended."""
    reading = asyncio.ensure_future(_read(call))
    await asyncio.wait({reading}, timeout=0.05)
    if not reading.done():
        call.cancel()
    return await reading


async def _write(call: grpc.aio.StreamStreamCall, data: bytes) -> bool:
    """Writes a message; False: the call has ended."""
    try:
        await call.write(data)
    except (grpc.aio.AioRpcError, asyncio.InvalidStateError, asyncio.CancelledError):
        return False
    return True


async def _half_close(call: grpc.aio.StreamStreamCall) -> bool:
    try:
        await call.done_writing()
    except (grpc.aio.AioRpcError, asyncio.InvalidStateError, asyncio.CancelledError):
        return False
    return True
