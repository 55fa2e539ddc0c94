import pytest

from antiphon_engine.api.errors import AntiphonError, ErrorReason
from antiphon_server.access.quota_limits import QuotaLimits
from antiphon_server.access.quotas import MAX_RESTING, TenantQuotas


class Bench:
    """Quotas with a clock that a test moves."""

    def __init__(self, **limits: int) -> None:
        self.now_ns = 0
        self.limits = QuotaLimits(**limits)
        self.quotas = TenantQuotas(lambda _: self.limits, clock_ns=lambda: self.now_ns)

    def pass_s(self, seconds: float) -> None:
        self.now_ns += round(seconds * 1e9)

    def enter(self, tenant: str = "a", *, times: int = 1, queued: bool = False):
        return [self.quotas.enter(tenant, queued=queued) for _ in range(times)]

    def refusal(self, tenant: str = "a", *, queued: bool = False) -> AntiphonError:
        with pytest.raises(AntiphonError) as caught:
            self.quotas.enter(tenant, queued=queued)
        assert caught.value.reason is ErrorReason.QUOTA_EXCEEDED
        return caught.value


def test_without_limits_nobody_is_refused() -> None:
    bench = Bench()
    for place in bench.enter(times=1000, queued=True):
        place.reserve(prompt_tokens=1 << 40, output_tokens=1 << 40)


def test_requests_of_a_minute_may_come_at_once_and_then_one_by_one() -> None:
    bench = Bench(requests_per_minute=6)
    bench.enter(times=6)

    refused = bench.refusal()
    assert refused.metadata == {
        "quota": "requests_per_minute",
        "limit": "6",
        "used": "6",
        "asked": "1",
    }
    assert refused.retry_delay_s == pytest.approx(10.0)
    bench.pass_s(9.9)
    assert "is 6, of which 6 are used; 1 more was asked for" in bench.refusal().message
    bench.pass_s(0.1)
    bench.enter()
    bench.refusal()


def test_retry_delay_is_true() -> None:
    bench = Bench(requests_per_minute=7)
    bench.enter(times=7)
    bench.pass_s(3)

    delay_s = bench.refusal().retry_delay_s
    assert delay_s is not None
    bench.pass_s(delay_s * 0.99)
    bench.refusal()
    bench.pass_s(delay_s * 0.011)
    bench.enter()


def test_tenants_do_not_use_each_others_quotas() -> None:
    bench = Bench(requests_per_minute=1, max_concurrent_requests=1)
    bench.enter("a")

    bench.enter("b")
    bench.refusal("a")


def test_concurrent_requests_are_counted_until_they_end() -> None:
    bench = Bench(max_concurrent_requests=2)
    first, _ = bench.enter(times=2)

    refused = bench.refusal()
    assert refused.metadata["quota"] == "max_concurrent_requests"
    assert refused.retry_delay_s is not None
    first.release()
    first.release()
    bench.enter()
    bench.refusal()


def test_what_is_refused_counts_for_nothing() -> None:
    bench = Bench(max_concurrent_requests=1, requests_per_minute=2)
    (place,) = bench.enter()
    for _ in range(10):
        bench.refusal()

    place.release()
    bench.enter()


def test_turns_that_wait_are_counted_until_they_start_or_end() -> None:
    bench = Bench(max_queued_turns=2)
    first, second = bench.enter(times=2, queued=True)

    assert bench.refusal(queued=True).metadata["quota"] == "max_queued_turns"
    bench.enter(queued=False)
    first.start()
    first.release()
    second.release()
    bench.enter(times=2, queued=True)
    bench.refusal(queued=True)


def test_tokens_are_set_aside_as_many_as_may_come_and_settled_at_the_end() -> None:
    bench = Bench(tokens_per_minute=600)
    first, second, third = bench.enter(times=3)
    first.reserve(prompt_tokens=100, output_tokens=400)

    with pytest.raises(AntiphonError) as caught:
        second.reserve(prompt_tokens=50, output_tokens=100)
    assert caught.value.metadata["quota"] == "tokens_per_minute"
    assert caught.value.retry_delay_s == pytest.approx(5.0)

    first.settle(130)
    first.settle(130)
    second.reserve(prompt_tokens=70, output_tokens=400)
    with pytest.raises(AntiphonError):
        third.reserve(prompt_tokens=1, output_tokens=0)


def test_output_without_a_bound_takes_what_there_is_and_owes_the_rest() -> None:
    bench = Bench(tokens_per_minute=60)
    (place,) = bench.enter()
    place.reserve(prompt_tokens=10, output_tokens=100_000)
    place.settle(120)

    assert bench.refusal().retry_delay_s == pytest.approx(61.0)
    bench.pass_s(61)
    bench.enter()


def test_prompt_beyond_a_minutes_worth_is_told_that_it_never_fits() -> None:
    bench = Bench(tokens_per_minute=60)
    (place,) = bench.enter()

    with pytest.raises(AntiphonError, match="ask for less") as caught:
        place.reserve(prompt_tokens=61, output_tokens=1)
    assert caught.value.retry_delay_s is None


def test_turn_that_was_let_in_before_is_never_refused_and_counts() -> None:
    bench = Bench(tokens_per_minute=60, max_concurrent_requests=1, requests_per_minute=1)
    bench.enter()

    again = bench.quotas.enter_again("a")
    again.reserve(prompt_tokens=1000, output_tokens=0)

    again.settle(90)
    again.release()
    assert bench.refusal().metadata["used"] == "1"
    bench.limits = QuotaLimits(tokens_per_minute=60)
    assert bench.refusal().metadata["used"] == "90"


def test_changed_limits_hold_at_once() -> None:
    bench = Bench(requests_per_minute=1)
    bench.enter()
    bench.refusal()

    bench.limits = QuotaLimits(requests_per_minute=3)
    bench.enter(times=2)
    bench.refusal()


def test_tenants_of_whom_nothing_is_in_use_are_forgotten() -> None:
    bench = Bench(requests_per_minute=60)
    (kept,) = bench.enter("busy")
    for number in range(3 * MAX_RESTING):
        bench.pass_s(1)
        for place in bench.enter(f"tenant{number}"):
            place.release()

    assert bench.quotas.num_tenants <= MAX_RESTING + 1
    bench.limits = QuotaLimits(max_concurrent_requests=1)
    bench.refusal("busy")
    kept.release()


def test_tenants_that_owe_tokens_are_not_forgotten() -> None:
    bench = Bench(tokens_per_minute=60)
    (place,) = bench.enter("owing")
    place.reserve(prompt_tokens=60, output_tokens=0)
    place.settle(60)
    place.release()

    for number in range(2 * MAX_RESTING):
        for other in bench.enter(f"tenant{number}"):
            other.release()

    bench.refusal("owing")


def test_refusals_are_counted_by_quota() -> None:
    quotas = TenantQuotas(
        lambda tenant: QuotaLimits(max_concurrent_requests=1, tokens_per_minute=10),
        clock_ns=lambda: 0,
    )
    place = quotas.enter("acme")

    for _ in range(2):
        with pytest.raises(AntiphonError):
            quotas.enter("acme")
    with pytest.raises(AntiphonError):
        place.reserve(prompt_tokens=11, output_tokens=1)

    assert quotas.num_refused == {
        "max_sessions": 0,
        "max_stored_bytes": 0,
        "max_queued_turns": 0,
        "max_concurrent_requests": 2,
        "requests_per_minute": 0,
        "tokens_per_minute": 1,
    }
