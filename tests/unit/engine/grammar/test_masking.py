"""Masks on logits, and what a draw makes of them."""

import numpy as np
import pytest
import torch

from antiphon_engine.grammar.base import mask_words
from antiphon_engine.grammar.masking import StepMasks
from antiphon_engine.sampling_draw import FLOOR, DrawParams, TokenDraws


def masks_of(allowed: np.ndarray, rows: list[int]) -> StepMasks:
    """Packs [G, V] booleans; the bit of the end is set, which logits have no place for."""
    bits = np.zeros((len(rows), mask_words(allowed.shape[1]) * 32), np.uint8)
    bits[:, : allowed.shape[1]] = allowed
    bits[:, allowed.shape[1]] = 1
    words = np.packbits(bits, axis=1, bitorder="little").view(np.int32)
    return StepMasks(rows=np.array(rows, np.int64), words=words, late=np.zeros(0, np.int64))


@pytest.mark.parametrize("vocabulary_size", [31, 32, 33, 1000])
@pytest.mark.parametrize("share", [0.02, 0.5, 0.98])
def test_only_guided_rows_lose_what_they_may_not_draw(vocabulary_size: int, share: float) -> None:
    random = np.random.default_rng(vocabulary_size)
    before = random.normal(size=(4, vocabulary_size)).astype(np.float32)
    allowed = random.random((2, vocabulary_size)) < share
    logits = torch.from_numpy(before.copy())

    masks_of(allowed, [3, 1]).apply(logits)

    expected = before.copy()
    expected[[3, 1]] = np.where(allowed, before[[3, 1]], np.float32(FLOOR))
    assert np.array_equal(logits.numpy(), expected)


@pytest.mark.parametrize("top_k", [0, 50])
def test_fewer_tokens_than_top_k_are_drawn_from_alone(top_k: int) -> None:
    random = np.random.default_rng(1)
    allowed = np.zeros((1, 900), bool)
    allowed[0, [3, 500, 899]] = True
    draws, drawn = TokenDraws(), set()

    for uniform in np.linspace(0, 0.999999, 40):
        logits = torch.from_numpy(random.normal(size=(1, 900)).astype(np.float32))
        masks_of(allowed, [0]).apply(logits)
        params = DrawParams(
            temperature=np.array([1.0], np.float32),
            top_k=np.array([top_k]),
            top_p=np.array([0.999]),
            min_p=np.array([0.0]),
            uniform=np.array([uniform]),
        )
        drawn.update(draws.draw(logits, np.zeros(1, np.int64), params).tolist())

    assert drawn == {3, 500, 899}
