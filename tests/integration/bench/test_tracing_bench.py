"""The benchmark of tracing: what it makes of what it measured."""

import math

from bench.traced_calls import Asked, Load
from bench.tracing import DEAD, KINDS, OFF, TRACED, Cost, Plan, order_of, told

_LOAD = Load(num_streams=16, prompt_tokens=32, output_tokens=32)
_PLAN = Plan(num_pairs=3, num_single=2, load=_LOAD)


def _asked(*, first_s: float, told_first_s: float, last_s: float, phases_s: float) -> Asked:
    return Asked(
        first_token_s=first_s,
        last_token_s=last_s,
        told_first_token_s=told_first_s,
        told_phases_s=phases_s,
    )


def _round(off_s: float, traced_s: float, dead_s: float) -> dict[str, Cost]:
    used_s = {OFF: off_s, TRACED: traced_s, DEAD: dead_s}
    return {kind: Cost(all_s=each_s, front_end_s=each_s / 10) for kind, each_s in used_s.items()}


def test_overheads_are_medians_over_pairs_of_one_round():
    # The machine got slower all the while, which is no cost of tracing.
    rounds = [_round(10, 10.1, 10.2), _round(20, 20.4, 20.2), _round(40, 44, 40.8)]
    asked = [_asked(first_s=0.102, told_first_s=0.1, last_s=0.5, phases_s=0.498)] * 2

    figures = told(_PLAN, rounds, asked)

    assert math.isclose(figures["overhead_pct"], 2.0)
    assert math.isclose(figures["dead_collector_pct"], 2.0)
    assert figures["overhead_quartiles_pct"] == [1.5, 6.0]
    assert figures["pairs"] == 3


def test_client_and_spans_agree_within_a_share_and_a_slack():
    near = _asked(first_s=0.111, told_first_s=0.1, last_s=0.5, phases_s=0.47)
    far = _asked(first_s=0.113, told_first_s=0.1, last_s=0.5, phases_s=0.4)

    of_near = told(_PLAN, [_round(1, 1, 1)] * 2, [near])["single"]
    of_far = told(_PLAN, [_round(1, 1, 1)] * 2, [far])["single"]

    assert (of_near["first_token_agrees"], of_near["phases_agree_share"]) == (True, 1.0)
    assert (of_far["first_token_agrees"], of_far["phases_agree_share"]) == (False, 0.0)


def test_each_server_takes_each_place_in_a_round_equally_often():
    orders = [order_of(number) for number in range(6)]

    for place in range(3):
        assert sorted(order[place] for order in orders) == sorted(KINDS * 2)
