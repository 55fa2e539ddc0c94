"""Masks on logits: tokens that are not allowed become ones that are never drawn.

Shapes: S sampled rows of a step, G of them guided, V the vocabulary, W words of 32 token bits.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from antiphon_engine.device import Device
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

    def apply(self, logits: torch.Tensor, device: Device) -> None:
        """Puts the logits [S, V] of tokens that are not allowed to the floor, in place."""
        if device.is_cuda and self.rows.size:
            self._apply_at_once(logits, device)
            return
        # Row by row and without the library's threads: there is too little to do for them.
        table = logits.numpy()
        for row, words in zip(self.rows, self.words, strict=True):
            _apply_to_row(table[row], words)

    def _apply_at_once(self, logits: torch.Tensor, device: Device) -> None:
        words_gw = device.upload(self.words)
        places = torch.arange(32, dtype=torch.int32, device=words_gw.device)
        bits_gv = (words_gw[:, :, None] >> places).bitwise_and_(1).flatten(1)
        rows = device.upload(self.rows)
        masked_gv = logits[rows].masked_fill_(bits_gv[:, : logits.shape[1]] == 0, FLOOR)
        logits[rows] = masked_gv


def _apply_to_row(logits_v: NDArray[np.float32], words: NDArray[np.int32]) -> None:
    """Writes the fewer: the tokens that are not allowed, or all and again those that are."""
    num_tokens = logits_v.shape[0]
    if 2 * int(np.bitwise_count(words.view(np.uint32)).sum()) > num_tokens:
        logits_v[_ids_of(~words, num_tokens)] = FLOOR
        return
    allowed = _ids_of(words, num_tokens)
    kept = logits_v[allowed]
    logits_v.fill(FLOOR)
    logits_v[allowed] = kept


def _ids_of(words: NDArray[np.int32], num_tokens: int) -> NDArray[np.int64]:
    """Returns the ids whose bits are set, of those that logits have."""
    bits = np.unpackbits(words.view(np.uint8), bitorder="little", count=num_tokens)
    return np.flatnonzero(bits.view(np.bool_))
