"""Which tokens the figures of delivery are made of."""

import json

import pytest

from bench.session_delays import Told, delivery_figures, read_told

_S = 1_000_000_000
_MS = 1_000_000


def _told(*, lived: tuple[int, int], tokens: list[tuple[float, float]]) -> Told:
    """Of tokens that were made at so many seconds and came so many milliseconds late."""
    return Told(
        num_messages=len(tokens),
        cpu_s=0.5,
        wait_s=0.1,
        all_live_ns=(lived[0] * _S, lived[1] * _S),
        made_ns=[round(made_s * _S) for made_s, _ in tokens],
        late_ns=[round(late_ms * _MS) for _, late_ms in tokens],
    )


def test_delays_count_while_all_streams_live() -> None:
    starts, live, ends = (1.0, 900.0), [(4.0 + i / 100, 5.0) for i in range(300)], (9.5, 700.0)

    figures = delivery_figures([_told(lived=(2, 9), tokens=[starts, *live, ends])])

    assert figures["p50_delivery_ms"] == figures["p99_delivery_ms"] == 5.0
    assert figures["start_s"] == 1.0
    assert figures["live_s"] == 6.0


def test_starts_and_ends_are_told_beside_them() -> None:
    tokens = [(1.0, 900.0), (4.0, 5.0), (9.5, 700.0)]

    figures = delivery_figures([_told(lived=(2, 9), tokens=tokens)])

    assert figures["p99_starting_ms"] == 900.0
    assert figures["p99_ending_ms"] == 700.0


def test_worst_second_tells_one_stall_from_a_full_server() -> None:
    calm = [(3.0 + i / 100, 5.0) for i in range(500)]
    stall = [(8.0 + i / 1000, 60.0) for i in range(4)]

    figures = delivery_figures([_told(lived=(2, 9), tokens=[*calm, *stall])])

    assert figures["p99_delivery_ms"] == 5.0
    assert figures["worst_second_p99_ms"] == 60.0


def test_tokens_that_a_slow_machine_held_up_are_told_apart() -> None:
    calm = [(3.0 + i / 100, 5.0) for i in range(500)]
    held_up = [(4.501, 80.0), (4.54, 45.0), (4.61, 30.0)]
    spans = [(round(4.5 * _S), round(4.6 * _S)), (20 * _S, 21 * _S)]

    figures = delivery_figures([_told(lived=(2, 9), tokens=[*calm, *held_up])], spans)

    assert figures["worst_second_p99_ms"] == 45.0
    assert figures["p99_at_pace_ms"] == 5.0
    assert figures["machine_slow_share"] == round(0.1 / 6, 3)
    assert figures["machine_slow_longest_ms"] == 100.0


def test_all_streams_are_those_of_all_loads() -> None:
    first = _told(lived=(2, 9), tokens=[(3.5, 50.0), (5.0, 5.0), (8.5, 60.0)])
    second = _told(lived=(3, 8), tokens=[(5.0, 5.0)])

    figures = delivery_figures([first, second])

    assert figures["p99_delivery_ms"] == 5.0


def test_streams_that_never_lived_together_are_no_measurement() -> None:
    with pytest.raises(AssertionError, match="too short"):
        delivery_figures([_told(lived=(5, 6), tokens=[(5.5, 1.0)])])


def test_what_a_load_prints_is_read() -> None:
    told = _told(lived=(2, 9), tokens=[(4.0, 5.0)])
    line = json.dumps(
        {
            "num_messages": 1,
            "cpu_s": 0.5,
            "wait_s": 0.1,
            "all_live_ns": [2 * _S, 9 * _S],
            "made_ns": [4 * _S],
            "late_ns": [5 * _MS],
        }
    )

    assert read_told(line.encode()) == told
