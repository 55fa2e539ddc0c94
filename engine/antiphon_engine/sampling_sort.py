"""Draws one token a row on a device that must not be waited for: what `sampling_draw` does, sorted.

Nothing here depends on what the logits are, so that the host can go on. The rules are those of
`sampling_draw`; its last bits differ, since sums run in another order.

Shapes: R rows, V the vocabulary, in order of ids or sorted.
"""

import numpy as np
import torch
from torch import Tensor

from antiphon_engine.device import Device
from antiphon_engine.sampling_draw import FLOOR, DrawParams


def draw_by_sorting(logits: Tensor, params: DrawParams, device: Device) -> Tensor:
    """Returns a token for each row of `logits` [R, V] float32, which is overwritten: [R] int64."""
    logits.nan_to_num_(nan=FLOOR, posinf=-FLOOR, neginf=FLOOR)
    temperature_r1 = device.upload(params.temperature)[:, None]
    scaled_rv = logits.sub_(logits.amax(-1, keepdim=True)).div_(temperature_r1)
    tokens = torch.empty(scaled_rv.shape[0], dtype=torch.int64, device=scaled_rv.device)
    filtered = (params.top_k > 0) | (params.top_p < 1.0) | (params.min_p > 0.0)
    plain_rows, filtered_rows = np.nonzero(~filtered)[0], np.nonzero(filtered)[0]
    if plain_rows.size:
        index = device.upload(plain_rows)
        weights_rv = scaled_rv[index].double().exp_()
        tokens[index] = _first_above(weights_rv, device.upload(params.uniform[plain_rows]))
    if filtered_rows.size:
        index = device.upload(filtered_rows)
        tokens[index] = _draw_filtered(scaled_rv[index], params.take(filtered_rows), device)
    return tokens


def _draw_filtered(scaled_rv: Tensor, params: DrawParams, device: Device) -> Tensor:
    """Draws from what the filters leave of each row, likeliest first."""
    # Stable: ids ascend, so the lowest of equals comes first.
    sorted_rv, ids_rv = torch.sort(scaled_rv, dim=-1, descending=True, stable=True)
    weights_rv = sorted_rv.double().exp_()
    ranks_v = torch.arange(weights_rv.shape[1], device=weights_rv.device)
    top_k = np.where(params.top_k > 0, params.top_k, weights_rv.shape[1])
    with np.errstate(divide="ignore"):
        lowest = np.log(params.min_p).astype(np.float32)
    dropped_rv = ranks_v >= device.upload(top_k)[:, None]
    dropped_rv |= sorted_rv < device.upload(lowest)[:, None]
    weights_rv.masked_fill_(dropped_rv, 0.0)

    cumulated_rv = weights_rv.cumsum(-1)
    limits = np.where(params.top_p < 1.0, params.top_p, np.inf)
    limit_r1 = device.upload(limits)[:, None] * cumulated_rv[:, -1:]
    dropped_rv = cumulated_rv - weights_rv >= limit_r1
    dropped_rv[:, 0] = False
    weights_rv.masked_fill_(dropped_rv, 0.0)
    ranks_r = _first_above(weights_rv, device.upload(params.uniform))
    return ids_rv.gather(1, ranks_r[:, None])[:, 0]


def _first_above(weights_rv: Tensor, uniform_r: Tensor) -> Tensor:
    """Returns in each row the first index up to which more than its part of the sum lies."""
    cumulated_rv = weights_rv.cumsum(-1)
    # Below the sum, since uniforms are below 1: the search never leads past the end.
    target_r1 = (uniform_r * cumulated_rv[:, -1])[:, None]
    return torch.searchsorted(cumulated_rv, target_r1, right=True)[:, 0]
