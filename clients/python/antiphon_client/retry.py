"""Repeats unary calls that a server could not take now, within the caller's deadline."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from antiphon_client.errors import Unavailable

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How often and how patiently. Only UNAVAILABLE is tried again."""

    max_attempts: int = 4
    """1: never again."""
    first_delay_s: float = 0.1
    max_delay_s: float = 5.0
    """The delay doubles up to this; each wait is drawn between its half and its whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retrier:
    """Carries a policy out."""

    policy: RetryPolicy
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    draw: Callable[[], float] = random.random
    """From [0, 1)."""

    async def run(self, attempt: Callable[[float], Awaitable[T]], *, timeout_s: float) -> T:
        """Returns what `attempt` returns; it is given the seconds that are left.

        Waits at least as long as the server asked. Raises what the last attempt raised, also
        where the next wait would pass the deadline.
        """
        deadline = self.clock() + timeout_s
        for number in range(1, self.policy.max_attempts + 1):
            try:
                return await attempt(max(deadline - self.clock(), 0.0))
            except Unavailable as error:
                delay_s = self._delay_s(number, error.retry_delay_s or 0.0)
                if number == self.policy.max_attempts or self.clock() + delay_s >= deadline:
                    raise
            await self.sleep(delay_s)
        raise AssertionError("a retry policy has at least one attempt")

    def _delay_s(self, num_failed: int, asked_s: float) -> float:
        full_s = min(self.policy.first_delay_s * 2.0 ** (num_failed - 1), self.policy.max_delay_s)
        return max(asked_s, full_s * (0.5 + self.draw() / 2))
