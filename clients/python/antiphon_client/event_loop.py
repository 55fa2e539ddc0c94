"""Event loops that may be closed while gRPC still has something to tell them."""

import asyncio
from collections.abc import Callable
from contextvars import Context
from typing import Final

_GRPC_MODULE: Final = "grpc._cython.cygrpc"


def deaf_once_closed(loop: asyncio.AbstractEventLoop) -> asyncio.AbstractEventLoop:
    """Returns `loop`, which from now on drops what gRPC tells it after it was closed.

    gRPC has one queue a process. Whichever loop reads it hands each completion to the loop that
    asked for it, and what was cancelled completes later, maybe once its loop is closed. Nobody
    waits for that, but the refusal would be raised in the loop that reads, which did nothing wrong.
    """
    call_soon_threadsafe = loop.call_soon_threadsafe

    def call_soon_while_open(
        callback: Callable[..., object], *args: object, context: Context | None = None
    ) -> asyncio.Handle:
        try:
            return call_soon_threadsafe(callback, *args, context=context)
        except RuntimeError:
            if not loop.is_closed() or getattr(callback, "__module__", None) != _GRPC_MODULE:
                raise
        dropped = asyncio.Handle(callback, args, loop, context)
        dropped.cancel()
        return dropped

    loop.call_soon_threadsafe = call_soon_while_open  # type: ignore[method-assign]
    return loop
