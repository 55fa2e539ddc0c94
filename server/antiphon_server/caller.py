"""Who makes a call."""

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
