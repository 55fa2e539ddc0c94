"""Log-probabilities of what steps draw: those of the raw logits, what the model would have said.

Shapes: S sampled rows of a step, R those of them that asked, V the vocabulary.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from antiphon_engine import _native
from antiphon_engine.device import Device
from antiphon_engine.likeliest import likeliest


@dataclass(frozen=True, slots=True, kw_only=True)
class RowLogprobs:
    """Log-probabilities of the R sampled rows that asked for them.

    On CUDA the floats and `top_ids` are complete when the step is.
    """

    rows: NDArray[np.int64]
    """[R] rows of the step."""
    chosen: NDArray[np.float32]
    """[R]"""
    num_top: NDArray[np.int32]
    """[R] how many of the likeliest were asked for."""
    top_ids: NDArray[np.int32]
    """[R, MAX_TOP_LOGPROBS or the vocabulary], likeliest first."""
    top: NDArray[np.float32]
    """As `top_ids`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RawLogprobs:
    """Of all tokens, taken before logits are overwritten."""

    rows: NDArray[np.int64]
    """[R] of the S."""
    logprobs: torch.Tensor
    """[R, V]"""
    device: Device

    def of(
        self,
        tokens: torch.Tensor,
        *,
        step_rows: NDArray[np.int64],
        num_top: NDArray[np.int32],
    ) -> RowLogprobs:
        """Launches the looking up of what was drawn, and of the likeliest.

        Args:
            tokens: [S] what was drawn, on the device.
            step_rows: [S] which rows of the step are sampled.
            num_top: [S] how many of the likeliest each wants told.
        """
        chosen = tokens[self.device.upload(self.rows)][:, None].long()
        top, top_ids = likeliest(self.logprobs)
        return RowLogprobs(
            rows=step_rows[self.rows],
            chosen=self.device.download(self.logprobs.gather(1, chosen)[:, 0], np.float32),
            num_top=num_top[self.rows],
            top_ids=self.device.download(top_ids, np.int32),
            top=self.device.download(top, np.float32),
        )


def raw_logprobs(
    logits: torch.Tensor, flags: NDArray[np.uint32], device: Device
) -> RawLogprobs | None:
    """Launches the log-probabilities of the rows whose flags [S] ask for them; None: none do."""
    rows = np.nonzero(flags & _native.FLAG_LOGPROBS)[0]
    if not rows.size:
        return None
    logprobs = torch.log_softmax(logits[device.upload(rows)], dim=-1)
    return RawLogprobs(rows=rows, logprobs=logprobs, device=device)
