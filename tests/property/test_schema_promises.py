"""What is taken is enforced: random schemas, beside a validator that knows nothing of grammars."""

import random
from collections.abc import Callable, Iterator

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, event, given, settings

from support.directed_schemas import FAMILIES, directed
from support.json_spellings import Json, Spelling, write
from support.random_schemas import SchemaMaker
from support.schema_attack import Refused, wrong_drawings, wrong_edges, wrong_values

NUM_DIRECTED = 8
"""Of each family, in each run."""
Attack = Callable[[Json, random.Random], Iterator[str]]


@pytest.mark.parametrize("wrongs", [wrong_values, wrong_drawings])
def test_what_is_producible_is_what_the_schema_allows(wrongs: Attack, scale: int):
    @settings(
        max_examples=40 * scale,
        deadline=None,
        derandomize=scale == 1,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.randoms(use_true_random=False))
    def attack(chooser: random.Random) -> None:
        schema = SchemaMaker(chooser).make()
        try:
            for wrong in wrongs(schema, chooser):
                pytest.fail(f"{wrong}: {write(schema, Spelling())}", pytrace=False)
        except Refused:
            event("refused")

    attack()


@pytest.mark.parametrize("family", FAMILIES)
def test_what_a_keyword_decides_about_is_decided_alike(family: str, scale: int):
    num_taken = 0
    for number in range(NUM_DIRECTED * scale):
        chooser = random.Random(f"{family} {number}")
        made = directed(chooser, family, number)
        try:
            for wrong in wrong_edges(made, chooser):
                pytest.fail(f"{wrong}: {write(made.schema, Spelling())}", pytrace=False)
        except Refused:
            continue
        num_taken += 1
    assert num_taken >= NUM_DIRECTED // 4
