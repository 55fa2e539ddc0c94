import grpc
import pytest

from antiphon_client import InvalidArgument, RetryPolicy, Unavailable
from antiphon_client.errors import ErrorDetails
from antiphon_client.retry import Pace, Retrier


class Clock:
    """Time that passes only while somebody sleeps."""

    def __init__(self):
        self.now_s = 100.0
        self.slept_s = []

    def __call__(self):
        return self.now_s

    async def sleep(self, delay_s):
        self.slept_s.append(delay_s)
        self.now_s += delay_s


def retrier(clock, **policy):
    pace = Pace(clock=clock, sleep=clock.sleep, draw=lambda: 0.999999)
    return Retrier(policy=RetryPolicy(**policy), pace=pace)


def unavailable(retry_delay_s=None):
    details = ErrorDetails(
        code=grpc.StatusCode.UNAVAILABLE, reason="OVERLOADED", retry_delay_s=retry_delay_s
    )
    return Unavailable(details)


class Attempts:
    """Raises the given errors one after the other, then answers."""

    def __init__(self, *errors):
        self.errors = list(errors)
        self.left_s = []

    async def __call__(self, left_s):
        self.left_s.append(left_s)
        if self.errors:
            raise self.errors.pop(0)
        return "answer"


async def test_a_call_that_was_unavailable_is_tried_again():
    attempts = Attempts(unavailable(), unavailable())

    answer = await retrier(Clock()).run(attempts, timeout_s=60)

    assert answer == "answer"
    assert len(attempts.left_s) == 3


async def test_other_failures_are_raised_at_once():
    failure = InvalidArgument(ErrorDetails(code=grpc.StatusCode.INVALID_ARGUMENT))
    attempts = Attempts(failure)

    with pytest.raises(InvalidArgument):
        await retrier(Clock()).run(attempts, timeout_s=60)

    assert len(attempts.left_s) == 1


async def test_delays_double_up_to_their_limit():
    clock = Clock()
    attempts = Attempts(*[unavailable()] * 4)

    await retrier(clock, max_attempts=5, first_delay_s=1, max_delay_s=3).run(attempts, timeout_s=60)

    assert clock.slept_s == pytest.approx([1, 2, 3, 3], rel=1e-4)


async def test_the_delay_that_the_server_asks_for_is_kept():
    clock = Clock()

    await retrier(clock).run(Attempts(unavailable(retry_delay_s=7)), timeout_s=60)

    assert clock.slept_s == [7]


async def test_no_attempt_begins_behind_the_deadline():
    clock = Clock()
    attempts = Attempts(unavailable(retry_delay_s=20))

    with pytest.raises(Unavailable):
        await retrier(clock).run(attempts, timeout_s=10)

    assert clock.slept_s == []


async def test_each_attempt_is_told_the_time_that_is_left():
    attempts = Attempts(unavailable(retry_delay_s=4))

    await retrier(Clock()).run(attempts, timeout_s=10)

    assert attempts.left_s == [10, 6]


async def test_the_last_attempt_raises_its_own_failure():
    attempts = Attempts(unavailable(), unavailable(retry_delay_s=0.5))

    with pytest.raises(Unavailable) as caught:
        await retrier(Clock(), max_attempts=2).run(attempts, timeout_s=60)

    assert caught.value.retry_delay_s == 0.5
