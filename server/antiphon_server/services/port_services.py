"""The services of a port, and what their callers are told before the model is there."""

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Final, cast

import grpc
from grpc.aio import ServicerContext

from antiphon_engine.api.errors import AntiphonError, ErrorReason

_RETRY_DELAY_S: Final = 2.0


class PortServices(grpc.GenericRpcHandler):
    """Services that come later than the port's start, which is when a server wants its handlers.

    Until they are open it answers their methods itself: a caller is told when to come again, where
    otherwise the port would be taken and silent for as long as a model loads.

    The generated functions that add a service to a server take this in a server's place.
    """

    def __init__(self, service_names: Iterable[str]) -> None:
        """Sets which services will come, by their full names."""
        self._prefixes = tuple(f"/{name}/" for name in service_names)
        self._handlers: list[grpc.GenericRpcHandler] = []
        self._open = False

    def add_generic_rpc_handlers(self, handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        """Adds a service."""
        self._handlers += handlers

    def add_registered_method_handlers(
        self, service_name: str, method_handlers: Mapping[str, object]
    ) -> None:
        """Is the other half of adding a service; the first has all of its methods."""

    @property
    def as_server(self) -> grpc.aio.Server:
        """This, as those functions want it."""
        return cast("grpc.aio.Server", self)

    def open(self) -> None:
        """Leaves all further calls to the services."""
        self._open = True

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> "grpc.RpcMethodHandler[bytes, bytes] | None":
        """Returns what answers a method; None: it is not of these services."""
        if not handler_call_details.method.startswith(self._prefixes):
            return None
        if not self._open:
            # On the wire a call with one request is a stream of one.
            return grpc.stream_stream_rpc_method_handler(_refuse, _as_it_is, _as_it_is)
        for handler in self._handlers:
            found = handler.service(handler_call_details)
            if found is not None:
                return cast("grpc.RpcMethodHandler[bytes, bytes]", found)
        return None


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
