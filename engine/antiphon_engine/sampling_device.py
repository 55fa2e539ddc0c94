"""Draws on a device that must not be waited for: what `sampling_draw` does, by a kernel.

The rules are those of `sampling_draw`; its last bits differ, since sums run in another order, and
what filters leave is drawn in the order of ids.
"""

import numpy as np
import torch
from numpy.typing import NDArray

from antiphon_engine.sampling_draw import DrawParams


def draw_on_device(
    logits: torch.Tensor, rows: NDArray[np.int64], params: DrawParams, tokens: torch.Tensor
) -> None:
    """Launches the drawing of a token for each of some rows.

    Args:
        logits: [S, V] float32, contiguous, on the device.
        rows: [R] of the S.
        params: Of those rows.
        tokens: [S] int32: those of `rows` are written.
    """
    # Only here: it imports Triton, which builds of PyTorch for CUDA bring.
    from antiphon_engine.cuda.kernels.drawing import draw_rows

    columns = (params.temperature, params.top_k, params.top_p, params.min_p, params.uniform)
    packed = np.stack([column.astype(np.float64) for column in columns], axis=1)
    device = logits.device
    draw_rows(
        logits,
        torch.from_numpy(rows.astype(np.int32)).to(device, non_blocking=True),
        torch.from_numpy(packed).to(device, non_blocking=True),
        tokens,
    )
