"""What a call's writer writes beside its handler, taken one by one."""

import asyncio
from collections import deque

from antiphon.v1.session_pb2 import ConverseResponse


class DirectFrames:
    """Stands for the transport of a call: a write lasts until its message is taken."""

    def __init__(self) -> None:
        self.num_taken = 0
        self._waiting: deque[tuple[ConverseResponse, asyncio.Future[None]]] = deque()
        self._arrived = asyncio.Event()

    async def write(self, message: ConverseResponse) -> None:
        """Offers a message."""
        assert not self._waiting, "a call takes one message at a time"
        taken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((message, taken))
        self._arrived.set()
        await taken

    async def arrive(self) -> None:
        """Returns once there is one to take."""
        await self._arrived.wait()

    def take(self) -> ConverseResponse | None:
        """Takes the one that is there, if one is."""
        self._arrived.clear()
        if not self._waiting:
            return None
        message, taken = self._waiting.popleft()
        self.num_taken += 1
        taken.set_result(None)
        return message
