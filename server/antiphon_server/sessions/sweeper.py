"""Looks for sessions whose time is over."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Final

from antiphon_engine.api.errors import AntiphonError
from antiphon_server.sessions.records import SessionKey, SessionRow
from antiphon_server.sessions.store import RECEIPT_LIFETIME_NS
from antiphon_server.sessions.surroundings import Surroundings
from antiphon_server.times import NS_PER_S

BATCH: Final = 100


class Sweeper:
    """A task that deletes expired sessions, and forgets what was remembered long enough."""

    def __init__(
        self, surroundings: Surroundings, expire: Callable[[SessionRow], Awaitable[None]]
    ) -> None:
        self._surroundings = surroundings
        self._expire = expire
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begins to look, at once and then from time to time."""
        self._task = asyncio.create_task(self._run())

    async def sweep(self) -> None:
        """Looks once. Raises AntiphonError, STORE_UNAVAILABLE."""
        store, limits = self._surroundings.store, self._surroundings.limits
        now_ns = self._surroundings.clock.wall_ns()
        # All that are there now, or else sessions that live for moments would heap up.
        left: list[SessionKey] = []
        rows = await store.list_expired(now_ns, BATCH)
        while (keys := [row.key for row in rows]) and keys != left:
            # Together, so that one transaction takes them.
            await asyncio.gather(*(self._expire(row) for row in rows))
            left, rows = keys, await store.list_expired(now_ns, BATCH)
        await store.forget_receipts(
            now_ns - RECEIPT_LIFETIME_NS, now_ns - int(limits.expired_memory_s * NS_PER_S)
        )

    async def close(self) -> None:
        """Stops to look."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def _run(self) -> None:
        while True:
            # Where the store can't be used now, it may be back at the next look.
            with contextlib.suppress(AntiphonError):
                await self.sweep()
            await asyncio.sleep(self._surroundings.limits.sweep_interval_s)
