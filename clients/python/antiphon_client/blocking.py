"""Calls of an event loop, made by programs without one: a thread runs the loop, others wait."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import Future
from typing import Final, TypeVar

from antiphon_client.event_loop import deaf_once_closed

T = TypeVar("T")

_END_WAIT_S: Final = 1.0


class CallLoop:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self._loop = deaf_once_closed(asyncio.new_event_loop())
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="antiphon-client", daemon=True
        )
        self._thread.start()

    def run(self, work: Coroutine[object, object, T]) -> T:
        """Returns what `work` returns. The time limits are those of the calls in it."""
        return self.submit(work).result()

    def call(self, function: Callable[[], T]) -> T:
        """Returns what `function` returns on the loop's thread."""

        async def work() -> T:
            return function()

        return self.run(work())

    def submit(self, work: Coroutine[object, object, T]) -> Future[T]:
        """Starts `work` and returns its outcome to come."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def close(self) -> None:
        """Lets what is left come to its end, cancels what does not, and ends the thread."""
        self.run(_end_tasks())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _end_tasks() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    if others:
        _, lasting = await asyncio.wait(others, timeout=_END_WAIT_S)
        for task in lasting:
            task.cancel()
        await asyncio.gather(*lasting, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_asyncgens()


class Each(Iterator[T]):
    """Yields what an asynchronous iterator yields; goes on where an interrupt broke its wait.

    An interrupt may come after a value was asked for and before that is noted here. So values
    have numbers, and asking twice for one is asking once.
    """

    def __init__(self, loop: CallLoop, values: AsyncIterator[T]) -> None:
        self._loop = loop
        self._values = values
        self._num_taken = 0
        # The loop's thread alone uses these.
        self._num_asked = 0
        self._asked: asyncio.Future[T] | None = None

    def __next__(self) -> T:
        try:
            value = self._loop.run(self._value(self._num_taken))
        except StopAsyncIteration:
            raise StopIteration from None
        self._num_taken += 1
        return value

    async def _value(self, index: int) -> T:
        if self._asked is None or index == self._num_asked:
            self._num_asked = index + 1
            self._asked = asyncio.ensure_future(self._following())
        # Cancelling one that asks must not cancel the value that another waits for.
        return await asyncio.shield(self._asked)

    async def _following(self) -> T:
        return await anext(self._values)
