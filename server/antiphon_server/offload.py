"""CPU work off the event loop."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

from antiphon_engine.api.errors import AntiphonError, ErrorReason

P = ParamSpec("P")
T = TypeVar("T")

_RETRY_DELAY_S = 1.0


class Offload:
    """A pool of few threads with a bound on what waits for them.

    For work that can take more than a few milliseconds: rendering, encoding, bursts of output.
    Used from one event loop. A call whose caller is cancelled still runs to its end.
    """

    def __init__(self, *, num_threads: int, max_pending: int) -> None:
        assert num_threads >= 1
        assert max_pending >= num_threads
        self._max_pending = max_pending
        self._num_pending = 0
        self._threads = ThreadPoolExecutor(num_threads, thread_name_prefix="offload")

    @property
    def num_pending(self) -> int:
        """Calls that run or wait."""
        return self._num_pending

    @property
    def has_room(self) -> bool:
        """Whether a call would be taken now."""
        return self._num_pending < self._max_pending

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Returns what `function` returns, or raises what it raises.

        Raises:
            AntiphonError: OVERLOADED where as many calls are pending as may be.
        """
        if not self.has_room:
            raise AntiphonError(
                ErrorReason.OVERLOADED,
                f"{self._num_pending} requests wait for text processing already, and no more than "
                f"{self._max_pending} may; try again in {_RETRY_DELAY_S:g} s",
                metadata={"pending": str(self._num_pending), "limit": str(self._max_pending)},
                retry_delay_s=_RETRY_DELAY_S,
            )
        loop = asyncio.get_running_loop()
        self._num_pending += 1
        future = loop.run_in_executor(self._threads, partial(function, *args, **kwargs))
        future.add_done_callback(self._count_done)
        # Shielded, so that work which a thread is busy with stays counted after a cancellation.
        return await asyncio.shield(future)

    def close(self) -> None:
        """Refuses more work and drops what has not begun. Does not wait for what runs."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _count_done(self, future: asyncio.Future[T]) -> None:
        self._num_pending -= 1
        if not future.cancelled():
            future.exception()  # Marks it as seen: nobody reads it where the caller has gone.
