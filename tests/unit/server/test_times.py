import pytest
from google.protobuf.duration_pb2 import Duration

from antiphon_server.times import to_duration, to_s


@pytest.mark.parametrize(
    ("nanoseconds", "seconds", "nanos"),
    [(0, 0, 0), (-5, 0, 0), (1, 0, 1), (1_500_000_000, 1, 500_000_000)],
)
def test_a_span_is_told_in_whole_seconds_and_the_rest(
    nanoseconds: int, seconds: int, nanos: int
) -> None:
    duration = to_duration(nanoseconds)

    assert (duration.seconds, duration.nanos) == (seconds, nanos)


def test_a_span_is_read_with_its_nanoseconds() -> None:
    assert to_s(Duration(seconds=2, nanos=250_000_000)) == 2.25
