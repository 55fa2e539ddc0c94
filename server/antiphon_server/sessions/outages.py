"""What has to be written at last, however long the store can't be."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from antiphon_engine.api.errors import AntiphonError, ErrorReason
from antiphon_server.sessions.store import SessionStore
from antiphon_server.sessions.turn import LiveTurn

T = TypeVar("T")

RETRY_INTERVAL_S: Final = 0.25


async def written_at_last(
    write: Callable[[], Awaitable[T]], turn: LiveTurn, store: SessionStore
) -> T:
    """Writes what can't be undone, again and again while the store as a whole can't be written.

    A turn's end, or a tool call, that was told and not kept would be undone by a restart, which
    takes the turn up again. So the turn waits until the store is back, or until it is left to the
    next server.

    Args:
        write: Writes it; may come again behind one that only seemed to fail.
        turn: Whose it is.
        store: What it is written to.

    Raises:
        AntiphonError: the write failed for its own sake, or the turn was left.
    """
    while True:
        try:
            return await write()
        except AntiphonError as error:
            is_outage = error.reason is ErrorReason.STORE_UNAVAILABLE and not store.writable
            if turn.is_left or not is_outage:
                raise
        await asyncio.sleep(RETRY_INTERVAL_S)
