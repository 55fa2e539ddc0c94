"""Who makes a call, and as a part of what."""

from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final, TypeVar

from grpc.aio import ServicerContext

from antiphon_server.trace_context import TraceContext

RequestT = TypeVar("RequestT")
ResponseT = TypeVar("ResponseT")


@dataclass(frozen=True, slots=True)
class Caller:
    """The one on whose behalf a call runs."""

    tenant: str
    """Within what sessions and cached prefixes are shared; empty: the server asks nobody."""


_CALLER: Final[ContextVar[Caller]] = ContextVar("caller")
"""Of the call that the current task runs, as its authentication found it."""


def note_caller(caller: Caller) -> None:
    """Notes whose call the current task runs. Each call has a task of its own."""
    _CALLER.set(caller)


def caller_of(context: ServicerContext[RequestT, ResponseT]) -> Caller:
    """Returns the caller of the call that the current task runs; each has been asked who it is."""
    del context  # The transport's own can't carry anything along.
    return _CALLER.get()


def trace_context_of(context: ServicerContext[RequestT, ResponseT]) -> TraceContext:
    """Returns the W3C trace context that came with a call; empty: none, or a broken one."""
    found = {"traceparent": "", "tracestate": ""}
    for key, value in context.invocation_metadata() or ():
        if key in found and isinstance(value, str):
            found[key] = value
    return TraceContext.read(**found)
