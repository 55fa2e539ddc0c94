"""The typed client of the server's administrative port."""

from collections.abc import AsyncGenerator
from types import TracebackType
from typing import Self

from antiphon.v1 import admin_pb2, admin_pb2_grpc

from antiphon_client.channel import ClientOptions, Connection, duration, told


class AdminClient:
    """Looks into one server at `target`. Every method raises ServerError."""

    def __init__(
        self, target: str = "127.0.0.1:50052", options: ClientOptions | None = None
    ) -> None:
        self._connection = Connection(target, options or ClientOptions())
        self._stub = admin_pb2_grpc.AdminServiceStub(self._connection.channel)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends the connection and every call that still runs."""
        await self._connection.close()

    async def get_server_info(self) -> admin_pb2.ServerInfo:
        """Returns what is running, with its settings."""
        return await self._connection.unary(
            self._stub.GetServerInfo, admin_pb2.GetServerInfoRequest()
        )

    async def get_engine_stats(self, *, model: str = "") -> admin_pb2.EngineStats:
        """Returns the engine's counters now."""
        return await self._connection.unary(
            self._stub.GetEngineStats, admin_pb2.GetEngineStatsRequest(model=model)
        )

    def watch_engine_stats(
        self, *, model: str = "", interval_s: float = 1.0
    ) -> AsyncGenerator[admin_pb2.EngineStats, None]:
        """Yields the engine's counters again and again until the reader leaves or closes it."""
        request = admin_pb2.WatchEngineStatsRequest(model=model, interval=duration(interval_s))
        return told(self._stub.WatchEngineStats(request, metadata=self._connection.metadata))

    async def flush_prefix_cache(self, *, model: str = "") -> int:
        """Forgets all KV cache that no running request uses; returns how many blocks."""
        request = admin_pb2.FlushPrefixCacheRequest(model=model)
        return (await self._connection.unary(self._stub.FlushPrefixCache, request)).num_blocks

    async def drain(self, *, limit_s: float | None = None) -> admin_pb2.DrainResponse:
        """Ends the server's work: nothing new is taken, and what runs is cancelled at the limit.

        Returns:
            What became of the turns, once none is left; the limit is the server's by default.
        """
        limit = None if limit_s is None else duration(limit_s)
        # It answers behind the limit, and a call that is repeated joins the one before.
        timeout_s = None if limit_s is None else limit_s + self._connection.options.timeout_s
        return await self._connection.unary(
            self._stub.Drain, admin_pb2.DrainRequest(limit=limit), timeout_s=timeout_s
        )
