"""The likeliest tokens of rows of log-probabilities."""

import torch
from torch import Tensor

MAX_TOP_LOGPROBS = 20


def likeliest(logprobs_RV: Tensor) -> tuple[Tensor, Tensor]:
    """Returns log-probabilities and ids of the likeliest tokens, in order.

    Always of as many, so that which of equals is told never depends on what others ask for.

    Args:
        logprobs_RV: [R, V].

    Returns:
        [R, K] of the rows' type, and [R, K] int32; K is MAX_TOP_LOGPROBS, or V where that is less.
    """
    top = torch.topk(logprobs_RV, min(MAX_TOP_LOGPROBS, logprobs_RV.shape[1]), dim=-1)
    return top.values, top.indices.int()
