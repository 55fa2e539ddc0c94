"""What is taken is enforced: random schemas, beside a validator that knows nothing of grammars."""

import random
from collections.abc import Callable, Iterator

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, event, given, settings

from support.json_spellings import Json, Spelling, write
from support.random_schemas import SchemaMaker
from support.schema_attack import Refused, wrong_drawings, wrong_values

Attack = Callable[[Json, random.Random], Iterator[str]]


@pytest.mark.parametrize("wrongs", [wrong_values, wrong_drawings])
def test_what_is_producible_is_what_the_schema_allows(wrongs: Attack, scale: int):
    @settings(
        max_examples=120 * scale,
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
