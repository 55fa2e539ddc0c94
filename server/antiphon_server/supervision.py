"""Whether the server serves: what its engines say, and whether it is about to stop."""

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Sequence

from antiphon_engine.api.errors import AntiphonError, ErrorReason
from antiphon_engine.api.handle import EngineHandle, EngineState

_DRAINING_RETRY_DELAY_S = 1.0


class Supervision:
    """Follows the engines and the calls that run. Used from one event loop."""

    def __init__(self) -> None:
        self._engines: Sequence[EngineHandle] = ()
        self._draining = False
        self._store_writable = True
        self._num_calls = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._callbacks: list[Callable[[], None]] = []

    @property
    def serving(self) -> bool:
        """Whether a request sent now would be worked on."""
        ready = all(engine.state is EngineState.READY for engine in self._engines)
        return ready and bool(self._engines) and not self._draining

    @property
    def store_writable(self) -> bool:
        """Whether the session store can be written."""
        return self._store_writable

    @property
    def draining(self) -> bool:
        """Whether no new calls are taken since the server is about to stop."""
        return self._draining

    @property
    def num_calls(self) -> int:
        """Calls that run."""
        return self._num_calls

    def follow(self, engines: Sequence[EngineHandle]) -> None:
        """Begins to follow the engines; before, nothing is served. Called once."""
        assert not self._engines
        self._engines = tuple(engines)
        for engine in self._engines:
            engine.on_state_change(lambda _: self._tell())
        self._tell()

    def on_change(self, callback: Callable[[], None]) -> None:
        """Calls `callback` on the event loop whenever `serving` may have changed."""
        self._callbacks.append(callback)

    def note_store(self, writable: bool) -> None:
        """Notes whether the session store can be written."""
        self._store_writable = writable
        self._tell()

    def begin_drain(self) -> None:
        """Takes no new calls from now on. Idempotent."""
        self._draining = True
        self._tell()

    async def wait_idle(self, limit_s: float | None) -> int:
        """Waits until no call runs, at most for the limit if any; returns how many still do."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), limit_s)
        return self._num_calls

    @contextlib.contextmanager
    def call(self) -> Iterator[None]:
        """Counts a call for as long as it runs.

        Raises:
            AntiphonError: DRAINING where none is taken any more.
        """
        if self._draining:
            raise AntiphonError(
                ErrorReason.DRAINING,
                "this server is shutting down; try again elsewhere or later",
                retry_delay_s=_DRAINING_RETRY_DELAY_S,
            )
        self._num_calls += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._num_calls -= 1
            if self._num_calls == 0:
                self._idle.set()

    def _tell(self) -> None:
        for callback in self._callbacks:
            callback()
