"""Matrices as 8-bit floats (e4m3), each row with a scale.

A scale for each row, not for each block: it is applied once, to a sum, and e4m3 has an exponent of
its own for every weight, so what a finer scale gains is small.

Shape suffixes: N rows, K columns.
"""

from typing import Final

import torch
from torch import Tensor

NARROW: Final = torch.float8_e4m3fn
LARGEST: Final = 448.0
"""The largest e4m3."""
_LEAST: Final = 1e-12
"""What a row's largest weight counts as at least, so that rows of zeros have a scale."""
_ROWS_AT_ONCE: Final = 4096


def narrow_matrix(weight_NK: Tensor, *, columns_K: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Returns a matrix as e4m3 [N, K], and what its rows are multiplied by: float32 [N].

    Args:
        weight_NK: Of any float type, and finite.
        columns_K: What its columns are multiplied by first; None: by nothing.
    """
    narrow_NK = torch.empty_like(weight_NK, dtype=NARROW)
    scale_N = torch.empty(len(weight_NK), dtype=torch.float32, device=weight_NK.device)
    for first in range(0, len(weight_NK), _ROWS_AT_ONCE):
        rows = slice(first, first + _ROWS_AT_ONCE)
        wide = weight_NK[rows].float()
        if columns_K is not None:
            wide *= columns_K.float()
        scale_N[rows] = wide.abs().amax(1).clamp_(min=_LEAST) / LARGEST
        narrow_NK[rows] = wide.div_(scale_N[rows, None]).to(NARROW)
    return narrow_NK, scale_N
