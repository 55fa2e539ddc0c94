"""Output told as it comes, without the stream's task being woken for it."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from antiphon.v1.session_pb2 import ConverseResponse, TurnEvent
from google.protobuf.message import Message

from antiphon_engine.api.errors import AntiphonError
from antiphon_server.call_writer import CallWriter
from antiphon_server.services.acknowledgements import Acknowledgements
from antiphon_server.services.reader_watch import ReaderWatch
from antiphon_server.sessions.event_log import EventReader

NewMessage = Callable[[], tuple[Message, TurnEvent]]
"""Returns an empty message, and the event in it."""


def event_in_frame() -> tuple[Message, TurnEvent]:
    """The NewMessage of a stream that tells of more than one turn."""
    frame = ConverseResponse()
    return frame, frame.turn_event


def event_alone() -> tuple[Message, TurnEvent]:
    """The NewMessage of a call that tells of one turn."""
    event = TurnEvent()
    return event, event


@dataclass(frozen=True, slots=True, kw_only=True)
class Telling:
    """What a stream's task and its direct writes share."""

    wake: asyncio.Event
    """Set when there is something for the task to do."""
    acks: Acknowledgements
    watch: ReaderWatch
    new_message: NewMessage = event_in_frame


class DirectTelling:
    """Tells of pieces of output where they come about. Used on one event loop.

    1. It writes only while the stream's task waits for news and nothing waits for that; so all
       that a stream tells has one order, which is the task's.
    2. Whatever is no piece of output is the task's, and so is what can't be told now.
    """

    __slots__ = (
        "_acks",
        "_closed",
        "_new_message",
        "_reader",
        "_task_waits",
        "_wake",
        "_watch",
        "_writer",
    )

    def __init__(self, writer: CallWriter | None, telling: Telling) -> None:
        """Sets what writes; None: the task alone does."""
        self._writer: Final = writer
        self._wake: Final = telling.wake
        self._acks: Final = telling.acks
        self._watch: Final = telling.watch
        self._new_message: Final = telling.new_message
        self._task_waits = False
        self._closed = False
        self._reader: EventReader | None = None  # Whose news are being written.

    def tell(self, reader: EventReader) -> bool:
        """Tells what is new to a reader, at once or behind what is being written for it.

        Returns:
            False: the task has to.
        """
        writer = self._writer
        if writer is None or not self._task_waits or self._wake.is_set():
            return False
        if writer.is_busy:
            return reader is self._reader
        if self._acks.full:
            return False
        try:
            writer.check()
        except AntiphonError:
            return False  # What the task tells next is refused as well, and ends the call.
        message, event = self._new_message()
        if not reader.read_delta_into(event):
            return False
        self._acks.note_sent(event)
        self._reader = reader
        self._watch.begin_write()
        writer.begin(message, self._look_again)
        return True

    def close(self) -> None:
        """Tells nothing more by itself: what the stream held is let go of. Idempotent."""
        self._closed = True
        self._task_waits = False
        self._reader = None

    async def wait_for_news(self) -> None:
        """Returns once there is something for the task, and it may write."""
        self._task_waits = not self._closed
        try:
            await self._wake.wait()
        finally:
            self._task_waits = False
        if self._writer is not None:
            await self._writer.free()

    def _look_again(self) -> None:
        """Tells what came while a message was written."""
        self._watch.end_write()
        reader = self._reader
        if reader is not None and reader.has_news and not self.tell(reader):
            self._wake.set()
