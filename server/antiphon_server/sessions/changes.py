"""Changes to sessions as wholes, which outlive the calls that asked for them."""

import asyncio
from collections.abc import Coroutine
from typing import TypeVar

T = TypeVar("T")


class Changes:
    """Carries changes out to their ends, also where a caller leaves in the middle.

    A change that is cut off between its write and what follows from that in memory would leave
    the two apart. Used on one event loop.
    """

    def __init__(self) -> None:
        self._running: set[asyncio.Task[object]] = set()

    async def carry_out(self, change: Coroutine[None, None, T]) -> T:
        """Runs a change and returns what it returns; cancelling this leaves the change alone."""
        task = asyncio.create_task(change)
        self._running.add(task)
        task.add_done_callback(self._note_end)
        return await asyncio.shield(task)

    async def wait(self) -> None:
        """Waits until none runs; each is bounded by the store's waits and those for turns."""
        while self._running:
            await asyncio.wait(self._running)

    def _note_end(self, task: "asyncio.Task[object]") -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # Marks it as seen: whoever asked may have gone.
