"""Faults of other engines by which a prefix was reused that was not there, or not all of it."""

from dataclasses import replace

import pytest

from antiphon_engine import _native
from support.core_model import CoreModel
from support.core_values import Ask, CoreShape, History

ROOMY = CoreShape(
    num_blocks=65,
    block_tokens=4,
    max_rows=4,
    max_step_tokens=16,
    max_context_tokens=64,
    max_requests=16,
)
STOP = 7


def stop_after(num_tokens: int):
    """Samples other tokens until the history is so long, then the stop."""

    def sample(history: History, _uniform: float) -> int:
        return STOP if len(history) == num_tokens else len(history) % 5

    return sample


@pytest.mark.parametrize("run_ahead", [0, 1, 2])
@pytest.mark.parametrize("partial_reuse", [False, True])
@pytest.mark.parametrize("num_tokens", [8, 9, 10, 11, 12, 13])
def test_fault_18_late_rows_are_no_part_of_what_is_kept(run_ahead, partial_reuse, num_tokens):
    model = CoreModel(replace(ROOMY, run_ahead=run_ahead, partial_reuse=partial_reuse))
    scope = model.scope("one")
    ask = Ask(prompt=(1, 2, 3, 4, 5, 6), scope=scope, max_output=30, stop_ids=frozenset([STOP]))
    first = model.submit(ask)
    model.run(stop_after(num_tokens))
    model.check()
    said = model.ended[first].tokens

    second = model.submit(replace(ask, prompt=(*said, 9, 9, 9, 9, 9)))
    model.run(stop_after(99))

    computed = len(said) - 1
    assert model.ended[first].finish == _native.FINISH_STOP_ID
    assert model.ended[second].reused == (computed if partial_reuse else computed // 4 * 4)


@pytest.mark.parametrize("run_ahead", [0, 1, 2])
@pytest.mark.parametrize("partial_reuse", [False, True])
@pytest.mark.parametrize("num_blocks", [1, 2, 3])
def test_fault_22_a_prompt_that_is_cached_whole_still_computes_a_token(
    run_ahead, partial_reuse, num_blocks
):
    # The model checks that no row is empty and that no shared block is written.
    model = CoreModel(replace(ROOMY, run_ahead=run_ahead, partial_reuse=partial_reuse))
    scope = model.scope("one")
    ask = Ask(prompt=tuple(range(4 * num_blocks)), scope=scope, max_output=6)
    handles = []
    for _ in range(3):
        handles.append(model.submit(ask))
        model.run(stop_after(99))
    together = [model.submit(ask) for _ in range(3)]
    model.run(stop_after(99))
    model.check()

    most = 4 * num_blocks - 1
    expected = most if partial_reuse else most // 4 * 4
    reused = [model.ended[handle].reused for handle in [*handles, *together]]
    assert reused == [0] + [expected] * 5
    outputs = [model.ended[handle].outputs for handle in [*handles, *together]]
    assert all(output == outputs[0] for output in outputs)
