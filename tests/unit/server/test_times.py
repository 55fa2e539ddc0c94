import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from antiphon_engine.api.errors import InvalidRequest
from antiphon_server.times import check_duration, check_future, to_duration, to_s


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


@pytest.mark.parametrize("nanos", [-5, 1_000_000_000])
def test_nanoseconds_below_none_or_of_a_whole_second_are_what_is_at_fault(nanos: int) -> None:
    with pytest.raises(InvalidRequest) as of_span:
        check_duration(Duration(seconds=5, nanos=nanos), "ttl")
    with pytest.raises(InvalidRequest) as of_point:
        check_future(Timestamp(seconds=5, nanos=nanos), 0, "end")

    for raised, field in ((of_span, "ttl.nanos"), (of_point, "end.nanos")):
        (violation,) = raised.value.violations
        assert violation.field == field
        assert violation.description == f"must be in [0, 999999999], is {nanos}"
