"""Masks on logits: tokens that are not allowed become ones that are never drawn.

Shapes: S sampled rows of a step, G of them guided, V the vocabulary, W words of 32 token bits.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from antiphon_engine import _kernels
from antiphon_engine.sampling_draw import FLOOR


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMasks:
    """Which tokens the guided rows of a step may draw."""

    rows: NDArray[np.int64]
    """[G] of the S, each once."""
    words: NDArray[np.int32]
    """[G, W] one bit a token."""
    late: NDArray[np.int64]
    """Guided rows of the S whose masks are not there: what is drawn for them counts for nothing."""

    def apply(self, logits: torch.Tensor) -> None:
        """Puts logits [S, V] of tokens that are not allowed to the floor, in place; on the CPU."""
        _kernels.mask_logits(logits.numpy(), self.rows, self.words, floor=FLOOR)
