"""Repeats what a server could not take now: unary calls, and the opening of streams."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final, TypeVar

import grpc

from antiphon_client.errors import ServerError, Unavailable

_BROKEN_ON_THE_WAY: Final = (
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.DEADLINE_EXCEEDED,
)

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How often and how patiently. Only UNAVAILABLE is tried again."""

    max_attempts: int = 4
    """1: never again."""
    first_delay_s: float = 0.1
    max_delay_s: float = 5.0
    """The delay doubles up to this; each wait is drawn between its half and its whole."""

    def delay_s(self, num_failed: int, asked_s: float, draw: float) -> float:
        """Returns the wait behind so many failures; `draw` is from [0, 1)."""
        full_s = min(self.first_delay_s * 2.0 ** min(num_failed - 1, 62), self.max_delay_s)
        return max(asked_s, full_s * (0.5 + draw / 2))


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Where time and chance come from."""

    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    draw: Callable[[], float] = random.random
    """From [0, 1)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retrier:
    """Carries a policy out."""

    policy: RetryPolicy
    pace: Pace = field(default_factory=Pace)

    async def run(self, attempt: Callable[[float], Awaitable[T]], *, timeout_s: float) -> T:
        """Returns what `attempt` returns; it is given the seconds that are left.

        Waits at least as long as the server asked. Raises what the last attempt raised, also
        where the next wait would pass the deadline.
        """
        clock = self.pace.clock
        deadline = clock() + timeout_s
        for number in range(1, self.policy.max_attempts + 1):
            try:
                return await attempt(max(deadline - clock(), 0.0))
            except Unavailable as error:
                asked_s = error.retry_delay_s or 0.0
                delay_s = self.policy.delay_s(number, asked_s, self.pace.draw())
                if number == self.policy.max_attempts or clock() + delay_s >= deadline:
                    raise
            await self.pace.sleep(delay_s)
        raise AssertionError("a retry policy has at least one attempt")


class Outage:
    """How long a stream has been without its server, and when to try again."""

    def __init__(self, policy: RetryPolicy, pace: Pace, *, timeout_s: float) -> None:
        self._policy = policy
        self._pace = pace
        self._timeout_s = timeout_s
        self._num_failed = 0
        self._deadline = 0.0

    def end(self) -> None:
        """Notes that the stream has brought something."""
        self._num_failed = 0

    @property
    def left_s(self) -> float:
        """How long it may still last."""
        return max(self._deadline - self._pace.clock(), 0.0) if self._num_failed else 0.0

    async def wait(self, failure: ServerError) -> None:
        """Waits before the next attempt.

        Raises:
            ServerError: `failure`, where no attempt is left.
        """
        if not self._num_failed:
            self._deadline = self._pace.clock() + self._timeout_s
        self._num_failed += 1
        asked_s = failure.retry_delay_s or 0.0
        delay_s = self._policy.delay_s(self._num_failed, asked_s, self._pace.draw())
        if delay_s >= self.left_s:
            raise failure
        await self._pace.sleep(delay_s)


def passes(failure: ServerError) -> bool:
    """Returns whether a stream that failed so may stand again later."""
    if isinstance(failure, Unavailable):
        return True
    # Without a reason no server spoke: something on the way ended the stream.
    return not failure.reason and failure.code in _BROKEN_ON_THE_WAY
