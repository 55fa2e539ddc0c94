"""What callers are told before the model is there."""

from collections.abc import AsyncIterator, Iterable
from typing import Final

import grpc
from grpc.aio import ServicerContext

from antiphon_engine.api.errors import AntiphonError, ErrorReason

_RETRY_DELAY_S: Final = 2.0


class UntilOpen(grpc.GenericRpcHandler):
    """Answers every method of the given services, until they are there themselves.

    A load balancer that looks for a server finds one that isn't ready, and a caller is told when
    to come again; without it the port would be taken and silent for as long as a model loads.
    """

    def __init__(self, service_names: Iterable[str]) -> None:
        self._prefixes = tuple(f"/{name}/" for name in service_names)
        self._open = False

    def note_open(self) -> None:
        """Leaves all further calls to the services."""
        self._open = True

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> "grpc.RpcMethodHandler[bytes, bytes] | None":
        """Returns the refusal, for a method of one of the services."""
        if self._open or not handler_call_details.method.startswith(self._prefixes):
            return None
        # On the wire a call with one request is a stream of one.
        return grpc.stream_stream_rpc_method_handler(_refuse, _as_it_is, _as_it_is)


async def _refuse(
    requests: AsyncIterator[bytes], context: ServicerContext[bytes, bytes]
) -> AsyncIterator[bytes]:
    raise AntiphonError(
        ErrorReason.ENGINE_DOWN,
        f"the server loads its model and takes no requests yet; try again in {_RETRY_DELAY_S:g} s",
        metadata={"state": "starting"},
        retry_delay_s=_RETRY_DELAY_S,
    )
    yield b""  # Makes it the kind of handler that is asked for.


def _as_it_is(data: bytes) -> bytes:
    return data
