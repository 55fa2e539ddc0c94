"""What is done when a call ends, however it ends."""

import weakref
from typing import Protocol, TypeVar

from google.protobuf.message import Message
from grpc.aio import ServicerContext

RequestT = TypeVar("RequestT", bound=Message)
ResponseT = TypeVar("ResponseT", bound=Message)


class Closable(Protocol):
    """What lets go of all that it holds, at once."""

    def close(self) -> None:
        """Lets go. Idempotent; never waits."""


def close_with(context: ServicerContext[RequestT, ResponseT], held: Closable) -> None:
    """Closes what a call holds at its end, also where the handler is not told of that.

    Weakly, since the transport keeps a connection's last call for as long as no other comes: the
    handler has to hold it.
    """
    reference = weakref.ref(held)

    def close(_: object) -> None:
        if (still_held := reference()) is not None:
            still_held.close()

    context.add_done_callback(close)  # type: ignore[arg-type]  # The stub is odd.
