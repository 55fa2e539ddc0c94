"""Writes of a call that its task isn't woken for."""

import asyncio
import weakref
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from typing import Final

import grpc
from google.protobuf.message import Message
from grpc.aio import ServicerContext

Write = Coroutine["asyncio.Future[None]", None, None]


class CallWriter:
    """Writes a call's messages from wherever their news come. Used on one event loop.

    A task that is woken for each message, and carries it through every layer of its call, costs as
    much as the write itself. So a write is begun here and gone on with as the transport confirms
    it.

    A call takes one message at a time, those that its handler yields among them. So begin none
    before the handler has yielded its first or while it may yield, and have it wait for `free`
    before it goes on.
    """

    __slots__ = (
        "__weakref__",
        "_context",
        "_is_broken",
        "_on_written",
        "_waits_for_free",
        "_write",
        "check",
        "is_busy",
    )

    def __init__(
        self, context: ServicerContext[Message, Message], check: Callable[[], None]
    ) -> None:
        """Writes to a call.

        Args:
            context: The call's.
            check: Raises an AntiphonError once it may be told nothing more.
        """
        self.check: Final = check
        """Raises an AntiphonError once the call may be told nothing more."""
        self.is_busy = False
        """Whether a message is being written."""
        self._context: Final = context
        self._write: Write | None = None
        self._on_written: Callable[[], None] = _do_nothing
        self._waits_for_free: asyncio.Future[None] | None = None
        self._is_broken = False

    def begin(self, message: Message, on_written: Callable[[], None]) -> None:
        """Begins to write a message.

        Args:
            message: What to write; of a call that is gone it is dropped.
            on_written: Called once the transport has taken it, unless the call is gone.
        """
        assert self._write is None, "one message at a time"
        if self._is_broken:
            return
        self._write = self._context.write(message)
        self.is_busy = True
        self._on_written = on_written
        self._go_on()

    async def free(self) -> None:
        """Returns once no message is being written."""
        if self._write is not None:
            self._waits_for_free = asyncio.get_running_loop().create_future()
            await self._waits_for_free

    def _go_on(self, _: "asyncio.Future[None] | None" = None) -> None:
        """Does what a task would, as far as the next thing that is waited for."""
        assert self._write is not None
        try:
            awaited = self._write.send(None)
        except StopIteration:
            # As `_forget_write` does.
            on_written, self._on_written = self._on_written, _do_nothing
            self._write = None
            self.is_busy = False
            try:
                on_written()
            finally:
                if self._waits_for_free is not None:
                    self._let_go_on()
        except grpc.aio.BaseError:
            # The call is gone, and its handler is cancelled or learns of it by its next message.
            self._break()
        except BaseException:
            self._break()
            raise
        else:
            awaited.add_done_callback(self._go_on)

    def _break(self) -> None:
        """Writes nothing from now on."""
        self._forget_write()
        self._is_broken = True
        self._let_go_on()

    def _forget_write(self) -> None:
        """Lets go of what is written, and of what follows it: that holds a turn's whole output."""
        self._write = None
        self.is_busy = False
        self._on_written = _do_nothing

    def _let_go_on(self) -> None:
        """Tells who waits until no message is being written."""
        if self._write is None and self._waits_for_free is not None:
            waits, self._waits_for_free = self._waits_for_free, None
            if not waits.done():
                waits.set_result(None)


def _do_nothing() -> None:
    """Follows a write that nothing follows."""


_WRITER: Final[ContextVar[weakref.ref[CallWriter] | None]] = ContextVar("call_writer", default=None)
"""Of the call that the current task runs. Weak: timers that outlive a call keep its context."""


def note_writer(writer: CallWriter) -> None:
    """Notes what writes to the call that the current task runs, whose own it stays."""
    _WRITER.set(weakref.ref(writer))


def current_writer() -> CallWriter | None:
    """Returns what writes to the call that the current task runs; None: its handler alone does."""
    noted = _WRITER.get()
    return noted() if noted is not None else None
