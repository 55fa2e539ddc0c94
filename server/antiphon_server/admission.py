"""Whether a request may join the engine's queue."""

from collections.abc import Callable
from typing import Final

from antiphon_engine.api.errors import AntiphonError, ErrorReason
from antiphon_engine.api.handle import EngineHandle, EngineState
from antiphon_server.times import NS_PER_S

_LEAST_RETRY_DELAY_S: Final = 0.1
_MOST_RETRY_DELAY_S: Final = 30.0
_ENGINE_RETRY_DELAY_S: Final = 2.0
_WEIGHT_OF_LAST_WAIT: Final = 0.2


class Admission:
    """Counts the requests of one engine, and bounds how many wait."""

    def __init__(
        self, *, engine: EngineHandle, max_queued_requests: int, clock_ns: Callable[[], int]
    ) -> None:
        self._engine = engine
        self._max_queued_requests = max_queued_requests
        self._clock_ns = clock_ns
        self._num_waiting = 0
        self._num_running = 0
        self._mean_wait_s = 0.0

    @property
    def num_waiting(self) -> int:
        """Requests that the engine has not begun to work on."""
        return self._num_waiting

    @property
    def num_running(self) -> int:
        """Requests that it works on."""
        return self._num_running

    def check(self, *, deadline_ns: int | None, outlives_engine: bool = False) -> None:
        """Checks that a request could be admitted now.

        Args:
            deadline_ns: When it must have ended, on the clock; None: it may take what it takes.
            outlives_engine: Whether it waits where there is no engine.

        Raises:
            AntiphonError: ENGINE_DOWN, OVERLOADED or TIMEOUT.
        """
        if self._engine.state is not EngineState.READY and not outlives_engine:
            raise AntiphonError(
                ErrorReason.ENGINE_DOWN,
                f"the engine is {self._engine.state.value} and takes no requests; "
                f"try again in {_ENGINE_RETRY_DELAY_S:g} s",
                metadata={"state": self._engine.state.value},
                retry_delay_s=_ENGINE_RETRY_DELAY_S,
            )
        if deadline_ns is not None and deadline_ns <= self._clock_ns():
            raise AntiphonError(
                ErrorReason.TIMEOUT, "the deadline passed before the request could be queued"
            )
        if self._num_waiting >= self._max_queued_requests:
            delay_s = self._retry_delay_s()
            raise AntiphonError(
                ErrorReason.OVERLOADED,
                f"{self._num_waiting} requests wait already, and no more than "
                f"{self._max_queued_requests} may; try again in {delay_s:.1f} s",
                metadata={
                    "waiting": str(self._num_waiting),
                    "limit": str(self._max_queued_requests),
                },
                retry_delay_s=delay_s,
            )

    def admit(self, *, deadline_ns: int | None, outlives_engine: bool = False) -> "Ticket":
        """Counts a request as waiting. Raises like `check`."""
        self.check(deadline_ns=deadline_ns, outlives_engine=outlives_engine)
        return self.admit_again()

    def admit_again(self) -> "Ticket":
        """Counts a request as waiting that was admitted before: others don't keep it out."""
        self._num_waiting += 1
        return Ticket(self)

    def note_start(self, waited_ns: int) -> None:
        """Moves a request from waiting to running."""
        self._num_waiting -= 1
        self._num_running += 1
        change_s = max(0, waited_ns) / NS_PER_S - self._mean_wait_s
        self._mean_wait_s += _WEIGHT_OF_LAST_WAIT * change_s

    def note_end(self, *, had_started: bool) -> None:
        """Forgets a request."""
        if had_started:
            self._num_running -= 1
        else:
            self._num_waiting -= 1

    def _retry_delay_s(self) -> float:
        return min(max(self._mean_wait_s, _LEAST_RETRY_DELAY_S), _MOST_RETRY_DELAY_S)


class Ticket:
    """One admitted request's place in the count."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self._started = False
        self._released = False

    def start(self, waited_ns: int) -> None:
        """Says that the engine works on it now. Idempotent."""
        if not (self._started or self._released):
            self._started = True
            self._admission.note_start(waited_ns)

    def release(self) -> None:
        """Gives the place back. Idempotent."""
        if not self._released:
            self._released = True
            self._admission.note_end(had_started=self._started)
