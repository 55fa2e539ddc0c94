"""grpc.health.v1, for every service of a port and for the server as a whole."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Final

import grpc
from antiphon.v1 import session_pb2
from grpc.aio import ServicerContext
from grpc_health.v1 import health_pb2, health_pb2_grpc

from antiphon_server.supervision import Supervision

MAX_WATCHERS: Final = 1024

_SESSION_SERVICE: Final = session_pb2.DESCRIPTOR.services_by_name["SessionService"].full_name


class HealthService(health_pb2_grpc.HealthServicer):  # type: ignore[misc]  # Has no types.
    """Says SERVING while `Supervision.serving` holds. Answers from memory alone.

    Sessions are not served while their store can't be written, and the server as a whole is not
    either; what needs no store is.
    """

    def __init__(
        self,
        supervision: Supervision,
        service_names: Sequence[str],
        *,
        max_watchers: int = MAX_WATCHERS,
    ) -> None:
        """Serves the named services of a port, to `max_watchers` Watch calls at a time."""
        self._supervision = supervision
        self._names = ("", *service_names)
        self._max_watchers = max_watchers
        self._changed: set[asyncio.Event] = set()
        supervision.on_change(self._wake_watchers)

    async def Check(
        self,
        request: health_pb2.HealthCheckRequest,
        context: ServicerContext[health_pb2.HealthCheckRequest, health_pb2.HealthCheckResponse],
    ) -> health_pb2.HealthCheckResponse:
        """Returns the status; NOT_FOUND for a service that the port doesn't have."""
        if request.service not in self._names:
            await context.abort(
                grpc.StatusCode.NOT_FOUND, f"this port has no service {request.service[:256]!r}"
            )
        return self._status(request.service)

    async def List(
        self,
        request: health_pb2.HealthListRequest,
        context: ServicerContext[health_pb2.HealthListRequest, health_pb2.HealthListResponse],
    ) -> health_pb2.HealthListResponse:
        """Returns the status of every service."""
        return health_pb2.HealthListResponse(
            statuses={name: self._status(name) for name in self._names}
        )

    async def Watch(
        self,
        request: health_pb2.HealthCheckRequest,
        context: ServicerContext[health_pb2.HealthCheckRequest, health_pb2.HealthCheckResponse],
    ) -> AsyncIterator[health_pb2.HealthCheckResponse]:
        """Yields the status now and at every change; a slow reader sees the latest only."""
        if len(self._changed) >= self._max_watchers:
            await context.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"{self._max_watchers} watchers are here already, the limit; use Check",
            )
        changed = asyncio.Event()
        self._changed.add(changed)
        told: health_pb2.HealthCheckResponse | None = None
        try:
            while True:
                changed.clear()
                if (status := self._status(request.service)) != told:
                    yield status
                    told = status
                await changed.wait()
        finally:
            self._changed.discard(changed)

    def _status(self, name: str) -> health_pb2.HealthCheckResponse:
        if name not in self._names:
            value = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
        elif self._supervision.serving and (
            self._supervision.store_writable or not _needs_store(name)
        ):
            value = health_pb2.HealthCheckResponse.SERVING
        else:
            value = health_pb2.HealthCheckResponse.NOT_SERVING
        return health_pb2.HealthCheckResponse(status=value)

    def _wake_watchers(self) -> None:
        for changed in self._changed:
            changed.set()


def _needs_store(name: str) -> bool:
    return name in ("", _SESSION_SERVICE)
