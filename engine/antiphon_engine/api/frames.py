"""How messages travel over the socket: a length of four bytes, little-endian, then MessagePack."""

import struct
from collections.abc import Sequence
from typing import Generic, TypeVar

import msgspec

from antiphon_engine.api.messages import ToEngine, ToFrontEnd, TokenLogprobs

MAX_FRAME_BYTES = 64 << 20

_LENGTH = struct.Struct("<I")
_Message = TypeVar("_Message")


class FrameError(Exception):
    """The other end sent what is no frame; the connection is of no more use."""


def encode_frame(message: msgspec.Struct) -> bytes:
    """Returns the bytes that stand for `message` on the socket."""
    body = msgspec.msgpack.encode(message)
    assert len(body) <= MAX_FRAME_BYTES, f"a frame of {len(body)} bytes, {MAX_FRAME_BYTES} allowed"
    return _LENGTH.pack(len(body)) + body


class FrameReader(Generic[_Message]):
    """Cuts a stream of bytes into messages."""

    def __init__(self, decoder: msgspec.msgpack.Decoder[_Message]) -> None:
        self._decoder: msgspec.msgpack.Decoder[_Message] = decoder
        self._pending = bytearray()

    def feed(self, data: bytes) -> list[_Message]:
        """Returns the messages that `data` completes.

        Raises:
            FrameError: a frame is too long or is no message.
        """
        self._pending += data
        messages: list[_Message] = []
        start = 0
        while len(self._pending) - start >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(self._pending, start)
            if size > MAX_FRAME_BYTES:
                raise FrameError(f"a frame of {size} bytes; at most {MAX_FRAME_BYTES} are allowed")
            end = start + _LENGTH.size + size
            if end > len(self._pending):
                break
            try:
                messages.append(self._decoder.decode(self._pending[start + _LENGTH.size : end]))
            except msgspec.MsgspecError as error:
                raise FrameError(f"a frame that is no message: {error}") from error
            start = end
        del self._pending[:start]
        return messages


def engine_reader() -> FrameReader[ToEngine]:
    """Returns a reader of what the front end sends."""
    return FrameReader(msgspec.msgpack.Decoder(ToEngine))


def front_end_reader() -> FrameReader[ToFrontEnd]:
    """Returns a reader of what the engine sends."""
    return FrameReader(msgspec.msgpack.Decoder(ToFrontEnd))


def encode_logprobs(logprobs: Sequence[TokenLogprobs]) -> bytes:
    """Returns log-probabilities as they can be kept."""
    return msgspec.msgpack.encode(logprobs)


def decode_logprobs(data: bytes) -> list[TokenLogprobs]:
    """Reads what `encode_logprobs` returned.

    Raises:
        FrameError: it is something else.
    """
    try:
        return msgspec.msgpack.decode(data, type=list[TokenLogprobs])
    except msgspec.MsgspecError as error:
        raise FrameError(f"no log-probabilities: {error}") from error
