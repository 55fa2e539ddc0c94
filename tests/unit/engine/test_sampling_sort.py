"""Draws by sorting are the draws that the CPU makes, save for where rounding decides."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from antiphon_engine.device import CPU
from antiphon_engine.sampling_draw import DrawParams, draw
from antiphon_engine.sampling_sort import draw_by_sorting

VOCABULARY = 700


def params(
    num_rows: int,
    *,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    uniform: NDArray[np.float64] | None = None,
) -> DrawParams:
    return DrawParams(
        temperature=np.full(num_rows, temperature, np.float32),
        top_k=np.full(num_rows, top_k, np.int64),
        top_p=np.full(num_rows, top_p),
        min_p=np.full(num_rows, min_p),
        uniform=np.random.default_rng(1).random(num_rows) if uniform is None else uniform,
    )


def logits_of(num_rows: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(num_rows, VOCABULARY, generator=torch.Generator().manual_seed(seed)) * 3


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    temperature=st.sampled_from([0.3, 1.0, 5.0]),
    top_k=st.sampled_from([0, 1, 2, 40, 699]),
    top_p=st.sampled_from([1e-9, 0.5, 0.9, 1.0]),
    min_p=st.sampled_from([0.0, 0.05, 1.0]),
)
def test_draws_are_those_of_the_cpu(
    *, seed: int, temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    logits = logits_of(16, seed)
    wanted = params(
        16,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        uniform=np.random.default_rng(seed).random(16),
    )

    drawn = draw_by_sorting(logits.clone(), wanted, CPU)

    assert drawn.tolist() == draw(logits.clone(), wanted).tolist()


def test_rows_with_and_without_filters_go_together() -> None:
    logits = logits_of(12)
    wanted = params(12)
    wanted.top_k[::3] = 5
    wanted.top_p[1::3] = 0.7

    drawn = draw_by_sorting(logits.clone(), wanted, CPU)

    assert drawn.tolist() == draw(logits.clone(), wanted).tolist()


@pytest.mark.parametrize("top_k", [0, 3])
@pytest.mark.parametrize("uniform", [0.0, 0.5, 1.0 - 2**-53])
def test_only_tokens_with_weight_are_drawn(top_k: int, uniform: float) -> None:
    logits = torch.full((1, VOCABULARY), -torch.inf)
    logits[0, [7, 300]] = torch.tensor([1.0, 2.0])

    drawn = draw_by_sorting(logits, params(1, top_k=top_k, uniform=np.array([uniform])), CPU)

    assert drawn.item() in (7, 300)


def test_logits_that_are_no_numbers_are_not_drawn() -> None:
    logits = torch.full((1, VOCABULARY), torch.nan)
    logits[0, 9] = 0.0

    assert draw_by_sorting(logits, params(1, top_p=0.9), CPU).tolist() == [9]
