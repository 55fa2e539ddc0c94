"""Draws one token a row from logits under temperature, min-p, top-k and top-p.

A row's token depends on its own logits, parameters and uniform alone, to the last bit: rows are
worked on together, but every sum runs inside a row, in an order that its batch mates don't change.
Among equal logits the lowest token id comes first.

Shapes: R rows, V the vocabulary, K chunks of it, C candidates of the row that has most.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from antiphon_engine import _kernels
from antiphon_engine.likeliest import bound_of_largest

FLOOR = -1e30
"""Stands for minus infinity: far below any logit, yet its differences and quotients stay finite."""

_CHUNK_TOKENS = 512
_WEIGHTLESS = -746.0
"""The exponential of less is zero in double precision: nothing below is ever drawn."""


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

    def take(self, rows: NDArray[np.int64]) -> "DrawParams":
        """Returns those of `rows`, in that order."""
        return DrawParams(
            temperature=self.temperature[rows],
            top_k=self.top_k[rows],
            top_p=self.top_p[rows],
            min_p=self.min_p[rows],
            uniform=self.uniform[rows],
        )


def draw(logits: torch.Tensor, params: DrawParams) -> NDArray[np.int64]:
    """Returns a token for each row of `logits` [R, V] float32, which is overwritten.

    Each filter sees what the one before it left: min-p keeps tokens at least so likely relative to
    the likeliest, top-k the so many likeliest, top-p the smallest set of the likeliest that reaches
    its share of what the two left. The likeliest token always stays.
    """
    scaled_rv = _scale(logits, torch.from_numpy(params.temperature))
    selected = (params.top_k > 0) | (params.min_p > 0.0)
    nucleus = ~selected & (params.top_p < 1.0)
    tokens = np.empty(selected.shape[0], np.int64)
    for draw_some, wanted in (
        (_draw_from_all, ~selected & ~nucleus),
        (_draw_from_nucleus, nucleus),
        (_draw_from_candidates, selected),
    ):
        if wanted.all():
            return draw_some(scaled_rv, params)
        rows = np.nonzero(wanted)[0]
        if rows.size:
            tokens[rows] = draw_some(scaled_rv[torch.from_numpy(rows)], params.take(rows))
    return tokens


def _scale(logits: torch.Tensor, temperature: torch.Tensor) -> torch.Tensor:
    """Returns logits over temperature, less the row's largest: at most 0, and 0 somewhere."""
    largest_r1 = logits.amax(-1, keepdim=True)
    if not torch.isfinite(largest_r1).all():
        logits.nan_to_num_(nan=FLOOR, posinf=-FLOOR, neginf=FLOOR)
        largest_r1 = logits.amax(-1, keepdim=True)
    return logits.sub_(largest_r1).div_(temperature[:, None])


def _draw_from_all(scaled_rv: torch.Tensor, params: DrawParams) -> NDArray[np.int64]:
    """Draws by the inverse of the cumulative distribution over all tokens, in order of their ids.

    The sums of chunks of tokens are searched first and then the tokens of one chunk, which spares
    adding up every token in double precision.
    """
    weights_rkc = _chunked_weights(scaled_rv)
    cumulated_rk = _cumulated_chunks(weights_rkc)
    target = params.uniform * cumulated_rk[:, -1]
    chunk = _first_above(cumulated_rk, target)
    rows = np.arange(chunk.shape[0])
    before = np.where(chunk > 0, cumulated_rk[rows, chunk - 1], 0.0)
    inside_rc = np.cumsum(weights_rkc[rows, chunk], axis=1, dtype=np.float64)
    return chunk * _CHUNK_TOKENS + _first_above(inside_rc, target - before)


def _draw_from_nucleus(scaled_rv: torch.Tensor, params: DrawParams) -> NDArray[np.int64]:
    """Draws from what top-p alone leaves, which may be nearly all."""
    weights_rv = np.exp(scaled_rv.numpy())
    return _kernels.draw_nucleus(weights_rv, shares=params.top_p, uniforms=params.uniform)


def _chunked_weights(scaled_rv: torch.Tensor) -> NDArray[np.float32]:
    """Returns the exponentials as [R, chunks, _CHUNK_TOKENS], padded with zeros."""
    num_rows, vocabulary_size = scaled_rv.shape
    num_chunks = -(-vocabulary_size // _CHUNK_TOKENS)
    weights = np.zeros((num_rows, num_chunks * _CHUNK_TOKENS), np.float32)
    np.exp(scaled_rv.numpy(), out=weights[:, :vocabulary_size])
    return weights.reshape(num_rows, num_chunks, _CHUNK_TOKENS)


def _cumulated_chunks(weights_rkc: NDArray[np.float32]) -> NDArray[np.float64]:
    """Returns the running sums of whole chunks, [R, chunks]."""
    # Halving adds element by element, so that no library's choice of an order enters.
    sums = weights_rkc
    while sums.shape[2] > 1:
        half = sums.shape[2] // 2
        sums = sums[:, :, :half] + sums[:, :, half:]
    return np.cumsum(sums[:, :, 0], axis=1, dtype=np.float64)


def _draw_from_candidates(scaled_rv: torch.Tensor, params: DrawParams) -> NDArray[np.int64]:
    """Draws from what the filters leave, top-k or min-p one of them."""
    lowest = _candidate_bound(scaled_rv, params)
    rows_n, ids_n = torch.nonzero(scaled_rv >= lowest[:, None], as_tuple=True)
    scaled_rc, ids_rc = _sorted_candidates(
        rows_n.numpy(), ids_n.numpy(), scaled_rv[rows_n, ids_n].numpy(), scaled_rv.shape[0]
    )
    weights_rc = np.exp(scaled_rc.astype(np.float64))
    ranks_c = np.arange(weights_rc.shape[1])
    top_k = np.where(params.top_k > 0, params.top_k, weights_rc.shape[1])
    weights_rc[ranks_c >= top_k[:, None]] = 0.0
    _keep_top_p(weights_rc, params)
    cumulated_rc = np.cumsum(weights_rc, axis=1)
    choice = _first_above(cumulated_rc, params.uniform * cumulated_rc[:, -1])
    return ids_rc[np.arange(ids_rc.shape[0]), choice]


def _candidate_bound(scaled_rv: torch.Tensor, params: DrawParams) -> torch.Tensor:
    """Returns [R]: below it no token survives the filters. At 0 at most, so the likeliest does."""
    with np.errstate(divide="ignore"):
        bound = np.log(params.min_p)
    lowest = torch.from_numpy(np.minimum(bound, 0.0).astype(np.float32))
    limited = np.nonzero(params.top_k > 0)[0]
    if limited.size:
        index = torch.from_numpy(limited)
        top_k = torch.from_numpy(params.top_k[limited])
        of_limited = scaled_rv if limited.size == len(scaled_rv) else scaled_rv[index]
        lowest[index] = torch.maximum(lowest[index], bound_of_largest(of_limited, top_k))
    # Masks leave some rows fewer tokens than top-k asks for; the others are no candidates.
    return lowest.clamp_(min=_WEIGHTLESS)


def _sorted_candidates(
    rows_n: NDArray[np.int64],
    ids_n: NDArray[np.int64],
    scaled_n: NDArray[np.float32],
    num_rows: int,
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Returns the candidates and their ids, [R, C], likeliest first, padded with minus infinity."""
    num = np.bincount(rows_n, minlength=num_rows)
    starts = np.cumsum(num) - num
    columns_n = np.arange(rows_n.shape[0]) - starts[rows_n]
    scaled_rc = np.full((num_rows, int(num.max())), -np.inf, np.float32)
    ids_rc = np.zeros(scaled_rc.shape, np.int64)
    scaled_rc[rows_n, columns_n] = scaled_n
    ids_rc[rows_n, columns_n] = ids_n
    # Stable: ids ascend, so the lowest of equals comes first.
    order = np.argsort(-scaled_rc, axis=1, kind="stable")
    return np.take_along_axis(scaled_rc, order, 1), np.take_along_axis(ids_rc, order, 1)


def _keep_top_p(weights_rc: NDArray[np.float64], params: DrawParams) -> None:
    """Zeroes in place what top-p drops of sorted weights."""
    limited = params.top_p < 1.0
    if not limited.any():
        return
    cumulated_rc = np.cumsum(weights_rc, axis=1)
    total = cumulated_rc[:, -1]
    reached = np.zeros_like(cumulated_rc)
    reached[:, 1:] = cumulated_rc[:, :-1]
    dropped = reached >= np.where(limited, params.top_p, np.inf)[:, None] * total[:, None]
    dropped[:, 0] = False
    weights_rc[dropped] = 0.0


def _first_above(cumulated: NDArray[np.float64], target: NDArray[np.float64]) -> NDArray[np.int64]:
    """Returns in each row the first index whose value is above the target.

    The target is taken below the last value, so that rounding never leads past the end, nor to a
    token of weight zero.
    """
    below_last = np.minimum(target, np.nextafter(cumulated[:, -1], -np.inf))
    first: NDArray[np.int64] = np.count_nonzero(cumulated <= below_last[:, None], axis=1)
    return first
