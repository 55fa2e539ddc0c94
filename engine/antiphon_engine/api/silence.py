"""How long an engine has given no sign of life, as far as its front end could have heard one."""

import asyncio

from antiphon_engine.api.connection import Connection
from antiphon_engine.api.messages import ToFrontEnd


class Silence:
    """Measures in ticks, so that time in which this process itself stood still doesn't count.

    After such a time what the engine sent is still unread, and its timers are due before that.
    """

    def __init__(self, connection: Connection[ToFrontEnd], *, tick_s: float) -> None:
        self._connection = connection
        self._tick_s = tick_s
        self._heard_s = connection.last_heard_s
        self.length_s = 0.0
        """At the end of the last tick."""

    async def tick(self, *awaited: asyncio.Future[str]) -> None:
        """Waits for a tick; not to its end where one of `awaited` is done or the link is lost."""
        loop = asyncio.get_running_loop()
        start_s = loop.time()
        await asyncio.wait(
            {self._connection.lost, *awaited},
            timeout=self._tick_s,
            return_when=asyncio.FIRST_COMPLETED,
        )
        if self._connection.last_heard_s != self._heard_s:
            self._heard_s = self._connection.last_heard_s
            self.length_s = 0.0
        else:
            self.length_s += min(loop.time() - start_s, self._tick_s)
