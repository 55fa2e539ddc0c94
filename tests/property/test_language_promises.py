"""What is taken is enforced: random expressions and EBNF grammars, beside judges of their own."""

import random
from collections.abc import Callable

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, event, given, settings

from support.language_attack import (
    Target,
    any_edged_expression,
    any_expression,
    any_grammar,
    wrongs_of,
)
from support.schema_attack import Refused


@pytest.mark.parametrize("make", [any_expression, any_edged_expression, any_grammar])
def test_what_is_producible_is_what_is_asked_for(
    make: Callable[[random.Random], Target], scale: int
):
    @settings(
        max_examples=40 * scale,
        deadline=None,
        derandomize=scale == 1,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.randoms(use_true_random=False))
    def attack(chooser: random.Random) -> None:
        target = make(chooser)
        try:
            for wrong in wrongs_of(target, chooser):
                pytest.fail(f"{wrong}: {target.text}", pytrace=False)
        except Refused:
            event("refused")

    attack()
