"""The likeliest tokens of rows, of log-probabilities or logits.

The largest of some is found several times faster than where it stands, or than a few of the
largest. So rows are looked at in chunks: only a chunk whose largest is among the largest matters.

Shape suffixes: R rows, V vocabulary, C chunks of it.
"""

import torch
from torch import Tensor

MAX_TOP_LOGPROBS = 20
_CHUNK_TOKENS = 256


def likeliest_ids(logits_RV: Tensor) -> Tensor:
    """Returns the place of each row's largest, of equals the first: [R] int64."""
    vocabulary_size = logits_RV.shape[1]
    if vocabulary_size <= 2 * _CHUNK_TOKENS:
        return logits_RV.argmax(-1)
    chunk_R1 = _chunk_maxima(logits_RV).argmax(-1, keepdim=True)
    # The last chunk may be short: it is looked at with the end of the one before it, whose entries
    # are less than its largest, or it were not the first.
    first_R1 = (chunk_R1 * _CHUNK_TOKENS).clamp_(max=vocabulary_size - _CHUNK_TOKENS)
    places_C = torch.arange(_CHUNK_TOKENS, device=logits_RV.device)
    return first_R1[:, 0] + logits_RV.gather(1, first_R1 + places_C).argmax(-1)


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


def _chunk_maxima(logits_RV: Tensor) -> Tensor:
    """Returns the largest of each chunk, [R, C]; the last chunk may be a short one."""
    num_whole = logits_RV.shape[1] // _CHUNK_TOKENS
    end = num_whole * _CHUNK_TOKENS
    whole_RV = logits_RV[:, :end]
    maxima_RC = whole_RV.view(len(logits_RV), num_whole, _CHUNK_TOKENS).amax(-1)
    if end == logits_RV.shape[1]:
        return maxima_RC
    return torch.cat((maxima_RC, logits_RV[:, end:].amax(-1, keepdim=True)), dim=1)
