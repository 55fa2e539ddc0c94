"""Draws beside a naive one that sorts."""

import numpy as np
import pytest
import torch

from antiphon_engine.cuda.kernels.drawing import draw_rows

NUM_ROWS = 4
CHOICES = ([0.3, 1.0, 1.7], [0, 1, 3, 50], [1.0, 0.9, 0.3, 1e-6], [0.0, 0.05, 1.0])
"""Temperatures, top-k, top-p and min-p."""


def naive_draw(logits, temperature, top_k, top_p, min_p, uniform):
    plain = np.nan_to_num(logits, nan=-1e30).clip(-1e30, 1e30)
    below = (plain.max() - plain) / np.float32(temperature)
    weights = np.exp(-below).astype(np.float64)
    left = np.argsort(below, kind="stable")
    if min_p > 0:
        left = left[below[left] <= abs(np.log(np.float32(min_p)))]
    if top_k > 0:
        left = left[: int(top_k)]
    if top_p < 1:
        reached = np.cumsum(weights[left])
        left = left[: max(1, int((reached - weights[left] < top_p * reached[-1]).sum()))]
    left = np.sort(left)
    reached = np.cumsum(weights[left])
    place = np.searchsorted(reached, uniform * reached[-1], side="right")
    return left[min(int(place), len(left) - 1)]


@pytest.mark.parametrize(("size", "has_ties"), [(97, False), (97, True), (1100, True)])
def test_token_is_the_one_that_sorting_finds(device, size, has_ties):
    random = np.random.default_rng(size)
    logits = random.normal(0, 3, (NUM_ROWS, size)).astype(np.float32)
    if has_ties:
        logits = np.round(logits)
    logits[0, 1], logits[1, 2] = np.nan, -np.inf
    columns = [random.choice(choices, NUM_ROWS) for choices in CHOICES]
    # The edge: all ties of the likeliest stay by min-p, and one of them by top-k.
    columns[1][2], columns[3][2] = 1, 1.0
    params = np.stack([*columns, random.random(NUM_ROWS)], axis=1)
    tokens = torch.full((NUM_ROWS + 1,), -1, dtype=torch.int32, device=device)

    # In another order, and one row is not drawn.
    rows = np.array([3, 1, 0, 2], np.int32)
    draw_rows(
        torch.from_numpy(logits).to(device),
        torch.from_numpy(rows).to(device),
        torch.from_numpy(params[rows]).to(device),
        tokens,
    )

    expected = [naive_draw(row, *param) for row, param in zip(logits, params, strict=True)]
    assert tokens.tolist() == [*expected, -1]
