"""What is told of the latest requests, beside a plain count of them all."""

from dataclasses import dataclass, field

from antiphon.v1.admin_pb2 import Quantiles
from hypothesis import given
from hypothesis import strategies as st

from antiphon_server.recent_latencies import MAX_REQUESTS, WINDOW_NS, RecentLatencies

SECOND_NS = 10**9


@dataclass
class Clock:
    now_ns: int = 5

    def __call__(self) -> int:
        return self.now_ns


@dataclass
class Watched:
    """Latencies and a clock that the test moves."""

    clock: Clock = field(default_factory=Clock)

    def __post_init__(self) -> None:
        self.latencies = RecentLatencies(self.clock)

    def end(self, first_ns: int, *, decode_ns: int = 0, num_tokens: int = 1) -> None:
        self.latencies.note(
            time_to_first_token_ns=first_ns, decode_ns=decode_ns, num_tokens=num_tokens
        )


def pair(quantiles: Quantiles) -> tuple[int, int]:
    return quantiles.p50.ToNanoseconds(), quantiles.p99.ToNanoseconds()


def naive(values: list[int], share: float) -> int:
    return next(v for v in sorted(values) if sum(w <= v for w in values) >= share * len(values))


@given(st.lists(st.integers(0, 50), min_size=1, max_size=150))
def test_quantiles_are_the_least_values_that_so_many_do_not_exceed(values: list[int]) -> None:
    watched = Watched()
    for value in values:
        watched.end(value)

    told = watched.latencies.tell()

    assert told.num_requests == len(values)
    assert pair(told.time_to_first_token) == (naive(values, 0.5), naive(values, 0.99))


def test_time_per_token_is_that_between_tokens_of_those_who_had_two() -> None:
    watched = Watched()
    watched.end(1)
    assert not watched.latencies.tell().HasField("time_per_output_token")

    watched.end(1, decode_ns=30, num_tokens=4)
    watched.clock.now_ns += SECOND_NS

    told = watched.latencies.tell()
    assert told.num_requests == 2
    assert pair(told.time_per_output_token) == (10, 10)


def test_what_is_older_than_the_window_or_beyond_the_bound_is_forgotten() -> None:
    watched = Watched()
    watched.end(1)
    watched.clock.now_ns += WINDOW_NS
    for _ in range(MAX_REQUESTS - 1):
        watched.end(2)
    assert watched.latencies.tell().num_requests == MAX_REQUESTS

    watched.clock.now_ns += SECOND_NS
    assert watched.latencies.tell().num_requests == MAX_REQUESTS - 1
    for _ in range(5):
        watched.end(3)
    watched.clock.now_ns += SECOND_NS
    assert watched.latencies.tell().num_requests == MAX_REQUESTS
    watched.clock.now_ns += WINDOW_NS + 1
    assert not watched.latencies.tell().HasField("time_to_first_token")


def test_answers_are_given_again_for_a_moment() -> None:
    watched = Watched()
    before = watched.latencies.tell()
    watched.end(1)

    assert watched.latencies.tell() is before
    watched.clock.now_ns += SECOND_NS
    assert watched.latencies.tell().num_requests == 1
