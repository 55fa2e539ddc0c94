"""Looks at an engine again and again, over restarts of its server."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Final

import grpc
from antiphon.v1 import admin_pb2

from antiphon_client import AdminClient, NotReachable, ServerError

RETRY_S: Final = 1.0
"""Between tries to reach a server that is away."""


async def looks(
    client: AdminClient,
    *,
    model: str,
    interval_s: float,
    on_loss: Callable[[ServerError], None],
    retry_s: float = RETRY_S,
) -> AsyncGenerator[admin_pb2.EngineStats, None]:
    """Yields an engine's counters, and waits for as long as they can't be had.

    Args:
        client: Of the port for administration.
        model: `models/{model}`; empty: the server's only one.
        interval_s: Between looks.
        on_loss: Is told why there are none for now.
        retry_s: How long it then waits.

    Raises:
        ServerError: what another try would not change; NotReachable before the first look.
    """
    was_seen = False
    while True:
        try:
            watch = client.watch_engine_stats(model=model, interval_s=interval_s)
            async with aclosing(watch) as all_stats:
                async for stats in all_stats:
                    was_seen = True
                    yield stats
        except ServerError as error:
            is_away = error.code is grpc.StatusCode.UNAVAILABLE
            if not is_away or (isinstance(error, NotReachable) and not was_seen):
                raise
            on_loss(error)
        await asyncio.sleep(retry_s)
