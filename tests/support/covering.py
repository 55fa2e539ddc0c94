"""Few combinations of many choices, so that any two choices meet in one of them."""

from collections.abc import Mapping, Sequence
from itertools import combinations, product
from typing import TypeVar

Choice = TypeVar("Choice")
Combination = dict[str, Choice]
_Pair = tuple[tuple[str, object], tuple[str, object]]


def all_of(axes: Mapping[str, Sequence[Choice]]) -> list[Combination[Choice]]:
    """Returns every combination."""
    return [dict(zip(axes, choices, strict=True)) for choices in product(*axes.values())]


def pairwise(axes: Mapping[str, Sequence[Choice]]) -> list[Combination[Choice]]:
    """Returns combinations in which any choice of one axis meets any of another.

    Always the same: each is the first of all that brings most pairs that were not there before.
    """
    everything = [(combination, _pairs(combination)) for combination in all_of(axes)]
    missing = set[_Pair]().union(*(pairs for _, pairs in everything))
    chosen = []
    while missing:
        combination, pairs = max(everything, key=lambda candidate: len(candidate[1] & missing))
        chosen.append(combination)
        missing -= pairs
    return chosen


def _pairs(combination: Combination[Choice]) -> set[_Pair]:
    return set(combinations(combination.items(), 2))
