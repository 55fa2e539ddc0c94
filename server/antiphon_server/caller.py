"""Who makes a call, and as a part of what."""

from dataclasses import dataclass
from typing import TypeVar

from grpc.aio import ServicerContext

RequestT = TypeVar("RequestT")
ResponseT = TypeVar("ResponseT")


@dataclass(frozen=True, slots=True)
class Caller:
    """The one on whose behalf a call runs."""

    tenant: str
    """Within what sessions and cached prefixes are shared."""


def caller_of(context: ServicerContext[RequestT, ResponseT]) -> Caller:
    """Returns the caller of a call; all are of one tenant, since no credentials are asked for."""
    del context
    return Caller(tenant="")


def traceparent_of(context: ServicerContext[RequestT, ResponseT]) -> str:
    """Returns the W3C trace context that came with a call; empty: none, or not as text."""
    for key, value in context.invocation_metadata() or ():
        if key == "traceparent" and isinstance(value, str):
            return value
    return ""
