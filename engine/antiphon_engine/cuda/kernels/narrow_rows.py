"""Rows as 8-bit floats (e4m3), each with a scale of its own: it depends on no other row.

Shape suffixes: T rows, K features.
"""

import torch
from torch import Tensor
from triton import jit, next_power_of_2
from triton import language as tl

from antiphon_engine.cuda.kernels.launching import (
    launch_options,
    let_next_start,
    wait_for_previous,
)
from antiphon_engine.cuda.kernels.narrow_pairs import LARGEST, LEAST, pairs_of
from antiphon_engine.cuda.kernels.narrow_products import pair_span


def narrow_rows(
    x_TK: Tensor,
    out_TK: Tensor,
    scale_T: Tensor,
    *,
    columns_K: Tensor | None = None,
    norm_epsilon: float | None = None,
    overlap: bool = False,
) -> None:
    """Launches the rounding of rows to e4m3, features in pairs as `interleave` has them.

    Args:
        x_TK: The rows, K a multiple of two.
        out_TK: e4m3, what they become.
        scale_T: float32, what each is multiplied by to come back.
        columns_K: What features are multiplied by first; None: by nothing.
        norm_epsilon: The scale also divides by the row's root mean square; None: it doesn't.
        overlap: Whether the kernel may start before the one in front of it has ended.
    """
    num_rows, size = x_TK.shape
    _narrow_rows_kernel[(num_rows,)](
        x_TK, x_TK if columns_K is None else columns_K, out_TK.view(torch.int16), scale_T,
        size // 2, norm_epsilon or 0.0,
        BLOCK=next_power_of_2(size // 2),
        SPAN=pair_span(size),
        NORM=norm_epsilon is not None,
        COLUMNS=columns_K is not None,
        LARGEST=LARGEST,
        LEAST=LEAST,
        OVERLAP=overlap,
        num_warps=4 if size <= 4096 else 8,
        **launch_options(overlap=overlap),
    )  # fmt: skip


@jit
def _narrow_rows_kernel(
    x, columns, out, scale, P, epsilon,
    BLOCK: tl.constexpr, SPAN: tl.constexpr, NORM: tl.constexpr, COLUMNS: tl.constexpr,
    LARGEST: tl.constexpr, LEAST: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    let_next_start(OVERLAP)
    row = tl.program_id(0).to(tl.int64)
    pair = tl.arange(0, BLOCK)
    mask = pair < P
    feature = pair // SPAN * (2 * SPAN) + pair % SPAN
    place = x + row * 2 * P + feature
    wait_for_previous(OVERLAP)
    first = tl.load(place, mask=mask, other=0.0).to(tl.float32)
    second = tl.load(place + SPAN, mask=mask, other=0.0).to(tl.float32)
    if NORM:
        squares = tl.sum(first * first + second * second, 0)
    if COLUMNS:
        first *= tl.load(columns + feature, mask=mask, other=0.0).to(tl.float32)
        second *= tl.load(columns + feature + SPAN, mask=mask, other=0.0).to(tl.float32)
    largest = tl.max(tl.maximum(tl.abs(first), tl.abs(second)), 0)
    largest = tl.maximum(largest, LEAST)
    factor = LARGEST / largest
    pairs = pairs_of(first * factor, second * factor)
    tl.store(out + row * P + pair, pairs, mask=mask)
    back = largest / LARGEST
    if NORM:
        back *= tl.rsqrt(squares / (2 * P) + epsilon)
    tl.store(scale + row, back)
