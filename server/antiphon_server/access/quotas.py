"""What each tenant uses of its quotas, and who is refused for it.

Rates are buckets that fill steadily and hold a minute's worth, so that as much may come at once as
in a minute. What is refused tells when it would fit.
"""

import contextlib
import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Final

from antiphon_engine.api.errors import AntiphonError, ErrorReason
from antiphon_server.access.quota_limits import QUOTAS, QuotaLimits, quota_exceeded

MAX_RESTING: Final = 4096
"""Tenants of whom nothing is in use are forgotten beyond it."""

_NANOS_PER_MINUTE: Final = 60_000_000_000
_LEAST_DELAY_S: Final = 0.001
_TINY: Final = 1e-6
"""What sums of fractions may be off."""
_UNTIL_ONE_ENDS_S: Final = 1.0
"""When to try again where nobody knows when room will be."""


class TenantQuotas:
    """Counts what tenants use. Used on one event loop."""

    def __init__(
        self, limits_of: Callable[[str], QuotaLimits], *, clock_ns: Callable[[], int]
    ) -> None:
        """Sets what returns a tenant's limits in force, and the monotonic clock."""
        self.limits_of: Final = limits_of
        self._clock_ns = clock_ns
        self._used: dict[str, _Use] = {}
        self.num_refused: Final[Counter[str]] = Counter(dict.fromkeys(QUOTAS, 0))
        """What was refused since the start, by quota; all are in it."""

    def enter(self, tenant: str, *, queued: bool = False) -> "Place":
        """Lets a request or turn in; whoever gets its place gives that back at its end.

        Args:
            tenant: Whose it is.
            queued: Whether it waits behind another of its session.

        Raises:
            AntiphonError: QUOTA_EXCEEDED; it counts for nothing then.
        """
        self.check(tenant, queued=queued)
        use = self._use(tenant)
        use.requests.missing += 1
        return Place(use, self._tokens(tenant, checked=True), queued=queued)

    def check(self, tenant: str, *, queued: bool = False) -> None:
        """Checks that a request or turn could enter now. Raises like `enter`."""
        limits, use, now_ns = self.limits_of(tenant), self._use(tenant), self._clock_ns()
        with self.counted():
            _check_count("max_concurrent_requests", limits.max_concurrent_requests, use.num_entered)
            if queued:
                _check_count("max_queued_turns", limits.max_queued_turns, use.num_queued)
            # One without tokens left would be refused once its prompt is known.
            use.tokens.check(1, limits.tokens_per_minute, now_ns, name="tokens_per_minute")
            use.requests.check(1, limits.requests_per_minute, now_ns, name="requests_per_minute")

    def enter_again(self, tenant: str, *, queued: bool = False) -> "Place":
        """Takes a turn back in that was let in before, whatever the quotas say by now."""
        return Place(self._use(tenant), self._tokens(tenant, checked=False), queued=queued)

    @contextlib.contextmanager
    def counted(self) -> Iterator[None]:
        """Counts what a quota refuses inside, such as where the store checks one."""
        try:
            yield
        except AntiphonError as error:
            if error.reason is ErrorReason.QUOTA_EXCEEDED:
                self.num_refused[error.metadata["quota"]] += 1
            raise

    @property
    def num_tenants(self) -> int:
        """Of how many tenants there are counts."""
        return len(self._used)

    def _tokens(self, tenant: str, *, checked: bool) -> "_Tokens":
        return _Tokens(
            per_minute=lambda: self.limits_of(tenant).tokens_per_minute,
            clock_ns=self._clock_ns,
            checked=checked,
            counted=self.counted,
        )

    def _use(self, tenant: str) -> "_Use":
        use = self._used.get(tenant)
        if use is None:
            if len(self._used) >= MAX_RESTING:
                self._forget_resting()
            use = self._used[tenant] = _Use()
        return use

    def _forget_resting(self) -> None:
        now_ns = self._clock_ns()
        self._used = {
            tenant: use
            for tenant, use in self._used.items()
            if not use.rests(self.limits_of(tenant), now_ns)
        }


class Place:
    """A request or turn that was let in, and the tokens set aside for it. All is idempotent."""

    def __init__(self, use: "_Use", tokens: "_Tokens", *, queued: bool) -> None:
        self._use = use
        self._tokens = tokens
        self._queued = queued
        self._released = False
        self._reserved = 0
        use.num_entered += 1
        use.num_queued += queued

    def start(self) -> None:
        """Says that it waits behind no other any more."""
        if self._queued:
            self._queued = False
            self._use.num_queued -= 1

    def reserve(self, *, prompt_tokens: int, output_tokens: int) -> None:
        """Sets tokens aside until `settle`.

        Args:
            prompt_tokens: Those of the prompt.
            output_tokens: The most that the outputs may have, all together.

        Raises:
            AntiphonError: QUOTA_EXCEEDED.
        """
        per_minute = self._tokens.per_minute()
        # An output that may go on for longer than the quota is held to it at its end.
        asked = max(prompt_tokens, min(prompt_tokens + output_tokens, per_minute))
        now_ns = self._tokens.clock_ns()
        if self._tokens.checked:
            with self._tokens.counted():
                self._use.tokens.check(asked, per_minute, now_ns, name="tokens_per_minute")
        self._use.tokens.missing += asked
        self._reserved += asked

    def settle(self, used_tokens: int) -> None:
        """Gives back what was set aside and not used, or takes what was used beyond it."""
        if self._reserved:
            self._use.tokens.missing += used_tokens - self._reserved
            self._reserved = 0

    def release(self) -> None:
        """Says that it has ended."""
        self.start()
        if not self._released:
            self._released = True
            self._use.num_entered -= 1


@dataclass(frozen=True, slots=True)
class _Tokens:
    """How a request's tokens are limited, whenever it asks for them."""

    per_minute: Callable[[], int]
    clock_ns: Callable[[], int]
    checked: bool
    counted: Callable[[], AbstractContextManager[None]]


@dataclass(slots=True)
class _Bucket:
    """What is missing of a minute's worth; it fills all the time."""

    missing: float = 0.0
    """May be more than a minute's worth, where requests used more than was set aside."""
    seen_ns: int = 0

    def check(self, amount: int, per_minute: int, now_ns: int, *, name: str) -> None:
        """Raises AntiphonError, QUOTA_EXCEEDED, where the amount isn't there; 0: no limit."""
        self._fill(per_minute, now_ns)
        lacking = self.missing + amount - per_minute
        if per_minute == 0 or lacking <= 0:
            return
        delay_s = None
        if amount <= per_minute:
            delay_s = max(lacking / per_minute * 60, _LEAST_DELAY_S)
        raise quota_exceeded(
            name,
            limit=per_minute,
            # Rounded up: a part of one is none that could be had.
            used=max(0, math.ceil(self.missing - _TINY)),
            asked=amount,
            delay_s=delay_s,
        )

    def _fill(self, per_minute: int, now_ns: int) -> None:
        elapsed_ns = now_ns - self.seen_ns
        self.seen_ns = now_ns
        filled = elapsed_ns * per_minute / _NANOS_PER_MINUTE
        self.missing = max(0.0, self.missing - filled) if per_minute else 0.0


@dataclass(slots=True)
class _Use:
    """What one tenant uses."""

    num_entered: int = 0
    num_queued: int = 0
    requests: _Bucket = field(default_factory=_Bucket)
    tokens: _Bucket = field(default_factory=_Bucket)

    def rests(self, limits: QuotaLimits, now_ns: int) -> bool:
        """Whether it is as that of a tenant that never came."""
        self.requests._fill(limits.requests_per_minute, now_ns)
        self.tokens._fill(limits.tokens_per_minute, now_ns)
        return not (self.num_entered or self.requests.missing or self.tokens.missing)


def _check_count(name: str, limit: int, used: int) -> None:
    if limit and used >= limit:
        raise quota_exceeded(name, limit=limit, used=used, asked=1, delay_s=_UNTIL_ONE_ENDS_S)
