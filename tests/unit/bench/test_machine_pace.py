"""When a machine counts as slow."""

import time

from bench.machine_pace import MachinePace, Sample, slow_spans

_MS = 1_000_000


def _samples(costs: str) -> list[Sample]:
    """One each 4 ms; a digit says how many times the usual it took."""
    return [Sample(4 * _MS * i, 20_000 * int(cost)) for i, cost in enumerate(costs)]


def test_slow_samples_in_a_row_are_a_span_from_the_one_before_them() -> None:
    assert slow_spans(_samples("111119999111")) == [(16 * _MS, 32 * _MS)]


def test_a_sample_that_is_slow_by_chance_is_no_span() -> None:
    assert slow_spans(_samples("1119111199111")) == []


def test_what_caches_cost_is_not_slow() -> None:
    assert slow_spans(_samples("1112222221111")) == []


def test_spans_stand_apart() -> None:
    assert slow_spans(_samples("11119991111199911111")) == [
        (12 * _MS, 24 * _MS),
        (44 * _MS, 56 * _MS),
    ]


def test_nothing_is_known_without_samples() -> None:
    assert slow_spans([]) == []


def test_samples_are_taken_while_the_block_lasts() -> None:
    with MachinePace() as pace:
        while len(pace.samples) < 3:
            time.sleep(0.001)

    assert all(each.cost_ns > 0 for each in pace.samples)
    assert pace.samples == sorted(pace.samples, key=lambda each: each.at_ns)
