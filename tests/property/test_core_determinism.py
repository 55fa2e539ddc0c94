"""The same commands, draws and clock bring a core through the same states, bit for bit."""

import pytest

from support.core_lives import CoreLife
from support.core_model import CoreModel


def states_of(seed: int) -> list[str]:
    """Every state of a random life, with what was planned into the buffers."""
    states: list[str] = []

    def look(model: CoreModel) -> None:
        plans = [sorted(step.image.items()) for step in model.in_flight]
        arrays = [(name, array.tobytes()) for plan in plans for name, array in plan]
        states.append(f"{model.core.dump_state()} {hash(tuple(arrays))} {model.stats()}")

    CoreLife(seed).live(num_actions=120, look=look)
    return states


@pytest.mark.timeout(0)
def test_the_same_life_goes_through_the_same_states(scale):
    for seed in range(15 * scale):
        first, second = states_of(seed), states_of(seed)

        differing = [
            place
            for place, pair in enumerate(zip(first, second, strict=True))
            if len(set(pair)) > 1
        ]
        assert differing == [], f"seed {seed}: states differ from action {differing[0]} on"


def test_other_draws_lead_to_other_states():
    assert states_of(1) != states_of(2)
