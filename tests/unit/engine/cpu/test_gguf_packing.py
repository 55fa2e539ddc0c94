"""Blocks of GGUF files, packed as they are, beside what the format's own library makes of them."""

import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

from antiphon_engine import _kernels

ROWS, WIDTH = 37, 768
SCALES_AT = {"Q4_0": [0], "Q5_0": [0], "Q8_0": [0], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208]}
"""Where a block has its float16 numbers."""
SUPER_BLOCKS = {"Q4_K", "Q5_K", "Q6_K"}


def random_blocks(name):
    """Any bytes, but scales as files have them: of very different sizes, and of either sign."""
    rng = np.random.default_rng(5)
    length, size = GGML_QUANT_SIZES[GGMLQuantizationType[name]]
    blocks = rng.integers(0, 256, (ROWS, WIDTH // length, size), np.uint8)
    for at in SCALES_AT[name]:
        scales = rng.choice([-1, 1], blocks.shape[:2]) * 10 ** rng.uniform(-6, 1, blocks.shape[:2])
        blocks[:, :, at : at + 2] = scales.astype(np.float16)[:, :, None].view(np.uint8)
    return blocks.reshape(ROWS, -1)


def pack(name, weight_format, isa="portable"):
    rows = random_blocks(name)
    matrix = _kernels.PackedMatrix(ROWS, WIDTH, weight_format=weight_format, isa=isa)
    matrix.pack_gguf(20, name, rows[20:].copy())
    matrix.pack_gguf(0, name, rows[:20].copy())
    return matrix.unpack(0, ROWS), dequantize(rows, GGMLQuantizationType[name])


@pytest.mark.parametrize("name", SCALES_AT)
def test_blocks_keep_their_weights(name):
    weights, expected = pack(name, _kernels.gguf_format(name))

    # The small scales of super-blocks are multiplied out, and rounded to float16.
    largest = np.abs(expected).reshape(ROWS, -1, 16).max(axis=2).repeat(16, axis=1)
    lost = largest / 1000 if name in SUPER_BLOCKS else np.abs(expected) * 1e-7
    assert (np.abs(weights - expected) <= lost).all()


@pytest.mark.parametrize("name", SCALES_AT)
def test_blocks_lose_the_last_place_of_bfloat16_at_most_where_products_take_it(name):
    isa = _kernels.best_isa()
    if not _kernels.has_isa("avx512_bf16"):
        return

    weights, expected = pack(name, _kernels.gguf_format(name), isa)

    largest = np.abs(expected).reshape(ROWS, -1, 16).max(axis=2).repeat(16, axis=1)
    assert (np.abs(weights - expected) <= largest / 128).all()


@pytest.mark.parametrize("name", SCALES_AT)
def test_blocks_are_expanded_for_another_format(name):
    weights, expected = pack(name, "float32")

    np.testing.assert_allclose(weights, expected, rtol=1e-6, atol=1e-6 * np.abs(expected).max())
