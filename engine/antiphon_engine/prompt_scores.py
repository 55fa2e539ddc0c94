"""How likely the model finds the tokens of prompts.

What the model says of a prompt's token stands in the logits of the token before it. They are never
there for all tokens at once: a slice is computed, read, and gone before the next one.

Shape suffixes: N scored tokens of a step, S of a slice, V vocabulary, K likeliest tokens.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from antiphon_engine.device import Device
from antiphon_engine.likeliest import MAX_TOP_LOGPROBS, likeliest

SLICE_BYTES = 32 << 20
"""What the logits of a slice take at most, unless one token's take more."""
SLICE_COPIES = 3
"""How often logits of a slice are there at once: as the model makes them, and as they are read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredTokens:
    """Which tokens of a step are asked what they say of the next one."""

    rows: NDArray[np.int64]
    """[N] places among the step's tokens."""
    next_ids: NDArray[np.int64]
    """[N] what the prompt has behind each."""
    with_top: bool
    """Whether somebody wants the likeliest tokens too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenScores:
    """Log-probabilities of what follows N tokens. On CUDA they are complete when the step is."""

    chosen: NDArray[np.float32]
    """[N] of the token that does follow."""
    top_ids: NDArray[np.int32]
    """[N, K], likeliest first; K is 0 where nobody wants them."""
    top: NDArray[np.float32]
    """As `top_ids`."""


def slice_tokens(vocabulary_size: int) -> int:
    """Returns how many tokens' logits are there at once."""
    return max(1, SLICE_BYTES // (4 * vocabulary_size))


def score_tokens(
    logits_of: Callable[[Tensor], Tensor],
    scored: ScoredTokens,
    *,
    vocabulary_size: int,
    device: Device,
) -> TokenScores:
    """Launches the scoring of some of a step's tokens.

    Args:
        logits_of: From places among the step's tokens, [S] int64, to float32 [S, V] behind them.
        scored: Those that are asked.
        vocabulary_size: V.
        device: Where all that is.
    """
    num_tokens = len(scored.rows)
    num_top = min(MAX_TOP_LOGPROBS, vocabulary_size) if scored.with_top else 0
    on_device = device.torch_device
    chosen_N = torch.empty(num_tokens, dtype=torch.float32, device=on_device)
    top_NK = torch.empty((num_tokens, num_top), dtype=torch.float32, device=on_device)
    top_ids_NK = torch.empty((num_tokens, num_top), dtype=torch.int32, device=on_device)
    rows_N, next_ids_N = device.upload(scored.rows), device.upload(scored.next_ids)
    size = slice_tokens(vocabulary_size)
    for first in range(0, num_tokens, size):
        part = slice(first, first + size)
        logprobs_SV = torch.log_softmax(logits_of(rows_N[part]), dim=-1)
        chosen_N[part] = logprobs_SV.gather(1, next_ids_N[part][:, None])[:, 0]
        if num_top:
            top_NK[part], top_ids_NK[part] = likeliest(logprobs_SV)
    return TokenScores(
        chosen=device.download(chosen_N, np.float32),
        top_ids=device.download(top_ids_NK, np.int32),
        top=device.download(top_NK, np.float32),
    )
