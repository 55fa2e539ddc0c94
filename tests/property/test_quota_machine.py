"""Quotas under any order of requests, beside a model that recounts everything from a log."""

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeVar

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    rule,
    run_state_machine_as_test,
)

from antiphon_engine.api.errors import AntiphonError
from antiphon_server.access.quota_limits import QuotaLimits
from antiphon_server.access.quotas import Place, TenantQuotas

LIMITS = {
    "a": QuotaLimits(max_concurrent_requests=3, requests_per_minute=6, tokens_per_minute=600),
    "b": QuotaLimits(max_queued_turns=2, tokens_per_minute=60),
    "c": QuotaLimits(),
}
NANOS_PER_MINUTE = 60 * 10**9
T = TypeVar("T")
TENANTS = st.sampled_from(sorted(LIMITS))


@dataclass(slots=True)
class Held:
    """A place as the model sees it."""

    tenant: str
    place: Place
    queued: bool
    is_checked: bool = True
    reserved: int = 0


class NaiveBucket:
    """What is missing of a minute's worth, exactly, from all that was ever taken and when."""

    def __init__(self, per_minute: int) -> None:
        self.per_minute = per_minute
        self.taken: list[tuple[int, int]] = []

    def missing(self, now_ns: int) -> Fraction:
        missing, seen_ns = Fraction(0), 0
        for taken_ns, amount in [*self.taken, (now_ns, 0)]:
            filled = Fraction((taken_ns - seen_ns) * self.per_minute, NANOS_PER_MINUTE)
            missing = max(Fraction(0), missing - filled) + amount
            seen_ns = taken_ns
        return missing

    def holds(self, amount: int, now_ns: int) -> bool:
        room = self.per_minute - self.missing(now_ns)
        # Where it is decided by less than a nanosecond's worth, either will do.
        return self.per_minute == 0 or amount <= room

    def is_close(self, amount: int, now_ns: int) -> bool:
        return abs(self.per_minute - self.missing(now_ns) - amount) < Fraction(1, 10**6)


def outcome(attempt: Callable[[], T]) -> T | AntiphonError:
    """Returns what an attempt returns, or how it is refused."""
    try:
        return attempt()
    except AntiphonError as error:
        return error


class QuotaMachine(RuleBasedStateMachine):
    """Lets requests in, has them reserve and settle tokens, and lets them go."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ns = 0
        self.quotas = TenantQuotas(LIMITS.__getitem__, clock_ns=lambda: self.now_ns)
        self.held: list[Held] = []
        self.requests = {name: NaiveBucket(one.requests_per_minute) for name, one in LIMITS.items()}
        self.tokens = {name: NaiveBucket(one.tokens_per_minute) for name, one in LIMITS.items()}

    @rule(seconds=st.sampled_from([0, 1, 7, 10, 61]))
    def pass_time(self, seconds: int) -> None:
        self.now_ns += seconds * 10**9

    @rule(tenant=TENANTS, queued=st.booleans())
    def enter(self, tenant: str, queued: bool) -> None:
        may = self.may_enter(tenant, queued)
        place = outcome(lambda: self.quotas.enter(tenant, queued=queued))
        if isinstance(place, AntiphonError):
            assert may is not True
            assert place.retry_delay_s is not None
            assert place.retry_delay_s > 0
            return
        assert may is not False
        self.requests[tenant].taken.append((self.now_ns, 1))
        self.held.append(Held(tenant, place, queued))

    @rule(tenant=TENANTS)
    def come_back_when_told(self, tenant: str) -> None:
        error = outcome(lambda: self.quotas.check(tenant))
        if error is None or not error.metadata["quota"].endswith("_per_minute"):
            return
        assert error.retry_delay_s is not None
        self.now_ns += int(error.retry_delay_s * 1e9) + 1000
        assert self.refusing(tenant) != error.metadata["quota"]

    @rule(tenant=TENANTS)
    def enter_again(self, tenant: str) -> None:
        self.held.append(Held(tenant, self.quotas.enter_again(tenant), False, is_checked=False))

    @rule(data=st.data(), prompt=st.integers(1, 90), output=st.integers(0, 900))
    def reserve(self, data: st.DataObject, prompt: int, output: int) -> None:
        if not self.held:
            return
        held = data.draw(st.sampled_from(self.held))
        bucket = self.tokens[held.tenant]
        asked = max(prompt, min(prompt + output, bucket.per_minute))
        before, close = bucket.holds(asked, self.now_ns), bucket.is_close(asked, self.now_ns)
        error = outcome(lambda: held.place.reserve(prompt_tokens=prompt, output_tokens=output))
        if error is not None:
            assert held.is_checked
            assert close or not before
            assert (error.retry_delay_s is None) == (asked > bucket.per_minute)
            return
        assert before or close or not held.is_checked
        bucket.taken.append((self.now_ns, asked))
        held.reserved += asked

    @rule(data=st.data(), share=st.floats(0, 2))
    def settle(self, data: st.DataObject, share: float) -> None:
        if not self.held:
            return
        held = data.draw(st.sampled_from(self.held))
        used = int(held.reserved * share)
        held.place.settle(used)
        if held.reserved:
            self.tokens[held.tenant].taken.append((self.now_ns, used - held.reserved))
        held.reserved = 0

    @rule(data=st.data())
    def start(self, data: st.DataObject) -> None:
        if self.held:
            held = data.draw(st.sampled_from(self.held))
            held.place.start()
            held.queued = False

    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        if self.held:
            held = data.draw(st.sampled_from(self.held))
            held.place.settle(held.reserved)
            held.place.release()
            held.place.release()
            self.held.remove(held)

    @invariant()
    def whoever_finds_room_is_let_in(self) -> None:
        for tenant in LIMITS:
            may = self.may_enter(tenant, queued=True)
            if may is not None:
                assert (self.refusing(tenant, queued=True) is None) == may

    def refusing(self, tenant: str, *, queued: bool = False) -> str | None:
        """The quota that refuses a request now."""
        error = outcome(lambda: self.quotas.check(tenant, queued=queued))
        return error.metadata["quota"] if error else None

    def may_enter(self, tenant: str, queued: bool) -> bool | None:
        """Whether the model lets a request in; None: it is too close to call."""
        limits = LIMITS[tenant]
        own = [held for held in self.held if held.tenant == tenant]
        num_queued = sum(held.queued for held in own)
        if limits.max_concurrent_requests and len(own) >= limits.max_concurrent_requests:
            return False
        if queued and limits.max_queued_turns and num_queued >= limits.max_queued_turns:
            return False
        buckets = (self.requests[tenant], self.tokens[tenant])
        if any(each.per_minute and each.is_close(1, self.now_ns) for each in buckets):
            return None
        return all(each.holds(1, self.now_ns) for each in buckets)


def test_quotas_do_as_the_model_over_random_lives(scale: int) -> None:
    run_state_machine_as_test(
        QuotaMachine,
        settings=settings(
            max_examples=25 * scale, stateful_step_count=40, deadline=None, derandomize=True
        ),
    )
