"""Draws one token a row from logits under temperature, min-p, top-k and top-p.

A row's token depends on its own logits, parameters and uniform alone, to the last bit. Among equal
logits the lowest token id comes first.

Shapes: S rows of logits, R some of them, V the vocabulary.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from antiphon_engine import _kernels

FLOOR = -1e30
"""Stands for minus infinity: far below any logit, yet its differences and quotients stay finite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawParams:
    """How each of R rows is drawn; ranges as in the contract, none of the rows greedy."""

    temperature: NDArray[np.float32]
    top_k: NDArray[np.int64]
    """0: off."""
    top_p: NDArray[np.float64]
    """1: off."""
    min_p: NDArray[np.float64]
    """0: off."""
    uniform: NDArray[np.float64]
    """In [0, 1): which point of the distribution."""


class TokenDraws:
    """Draws on the CPU, in memory that is kept from one to the next. One thread at a time."""

    def __init__(self) -> None:
        self._rows = _kernels.RowDraw(isa=_kernels.best_isa())

    def draw(
        self, logits: torch.Tensor, rows: NDArray[np.int64], params: DrawParams
    ) -> NDArray[np.int32]:
        """Returns a token for each of some rows [R] of `logits` [S, V] float32; overwrites those.

        Each filter sees what the one before it left: min-p keeps tokens at least so likely relative
        to the likeliest, top-k the so many likeliest, top-p the smallest set of the likeliest that
        reaches its share of what the two left. The likeliest token always stays.
        """
        return self._rows.draw(
            logits.numpy(),
            rows,
            temperature=params.temperature,
            top_k=params.top_k,
            top_p=params.top_p,
            min_p=params.min_p,
            uniform=params.uniform,
        )

    def likeliest(self, logits: torch.Tensor, rows: NDArray[np.int64]) -> NDArray[np.int32]:
        """Returns the likeliest token of each of some rows [R] of `logits` [S, V] float32."""
        return self._rows.likeliest(logits.numpy(), rows)
