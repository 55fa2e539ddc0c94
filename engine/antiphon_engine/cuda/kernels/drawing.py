"""Draws a token a row under temperature, min-p, top-k and top-p, without sorting.

The rules are those of `sampling_draw`. Which tokens stay is a bound on how far they lie below the
likeliest; it is found by dividing the range of bounds in eight, pass after pass. Of tokens at the
bound itself, the lowest ids stay. What is drawn comes in the order of ids.

Shape suffixes: S rows of logits, R of them drawn, V vocabulary.
"""

from typing import Final

from torch import Tensor
from triton import jit
from triton import language as tl

_BLOCK: Final = 1024


def draw_rows(logits_SV: Tensor, rows_R: Tensor, params_R5: Tensor, tokens_S: Tensor) -> None:
    """Launches the drawing of some rows.

    Args:
        logits_SV: float32, contiguous. NaN stands for least likely.
        rows_R: int32, each once.
        params_R5: float64, contiguous: temperature, top-k (0: off), top-p, min-p and the uniform of
            each.
        tokens_S: int32: where tokens go, at `rows_R`.
    """
    _draw_kernel[(rows_R.shape[0],)](
        logits_SV, rows_R, params_R5, tokens_S, logits_SV.shape[1], BLOCK=_BLOCK, num_warps=8
    )


@jit
def _logits(logits, place, size):
    logit = tl.load(logits + place, mask=place < size, other=-1e30)
    logit = tl.where(logit != logit, -1e30, logit)  # noqa: PLR0124 (what NaN alone does)
    return tl.minimum(tl.maximum(logit, -1e30), 1e30)


@jit
def _distances(logits, place, size, largest, temperature):
    """Returns how far tokens lie below the likeliest: at least 0; infinity behind the last."""
    below = (largest - _logits(logits, place, size)) / temperature
    return tl.where(place < size, below, float("inf"))


@jit
def _masses(
    logits, size, largest, temperature, bound, num_ties, pivots, COUNT, BLOCK: tl.constexpr
):
    """Returns what the tokens that stay weigh up to each of eight bounds, or how many they are.

    Sums are taken by thread, and put together once: a barrier a block would take most of the time.
    """
    masses = tl.zeros([BLOCK, 8], tl.float32)
    for start in range(0, size, BLOCK):
        place = start + tl.arange(0, BLOCK)
        below = _distances(logits, place, size, largest, temperature)
        key = below.to(tl.int32, bitcast=True)
        weight = tl.where(COUNT, 1.0, tl.exp(-below))
        weight = tl.where(key < bound, weight, 0.0)
        masses += tl.where(key[:, None] <= pivots[None, :], weight[:, None], 0.0)
    mass = tl.sum(masses.to(tl.float64), 0)
    # All ties weigh the same.
    each = tl.where(COUNT, 1.0, tl.exp(-bound.to(tl.float32, bitcast=True))).to(tl.float64)
    return mass + tl.where(pivots >= bound, num_ties.to(tl.float64) * each, 0.0)


@jit
def _first_bound(
    logits, size, largest, temperature, bound, num_ties, wanted, COUNT, BLOCK: tl.constexpr
):
    """Returns the least key up to which the tokens that stay reach `wanted`, and what is below it.

    Keys are the bits of distances. Without one that reaches it, the key of infinity.
    """
    low = tl.zeros([], tl.int64)  # nothing below it reaches the mass
    width = tl.zeros([], tl.int64) + (1 << 31)
    below_mass = tl.zeros([], tl.float64)
    for _ in range(11):
        width = (width + 7) // 8
        ends = low + width * (1 + tl.arange(0, 8).to(tl.int64)) - 1
        pivots = tl.minimum(ends, 0x7F800000).to(tl.int32)
        mass = _masses(logits, size, largest, temperature, bound, num_ties, pivots, COUNT, BLOCK)
        num_short = tl.sum((mass < wanted).to(tl.int32), 0)
        below_mass = tl.maximum(below_mass, tl.max(tl.where(mass < wanted, mass, 0.0), 0))
        low += width * num_short
    return tl.minimum(low, 0x7F800000).to(tl.int32), below_mass


@jit(do_not_specialize=["size"])
def _draw_kernel(logits, rows, how, tokens, size, BLOCK: tl.constexpr):
    index = tl.program_id(0)
    row = tl.load(rows + index)
    logits += row.to(tl.int64) * size
    how += index * 5
    temperature = tl.load(how).to(tl.float32)
    top_k, top_p = tl.load(how + 1), tl.load(how + 2)
    min_p, uniform = tl.load(how + 3).to(tl.float32), tl.load(how + 4)

    best = tl.full([BLOCK], -1e30, tl.float32)
    for start in range(0, size, BLOCK):
        best = tl.maximum(best, _logits(logits, start + tl.arange(0, BLOCK), size))
    largest = tl.max(best, 0)

    # Tokens below the bound stay, and of those at it the first `num_ties`.
    bound = tl.full([], 0x7F800000, tl.int32)
    num_ties = tl.zeros([], tl.int32)
    if min_p > 0:
        # Not negated: the bits of minus zero are another key.
        bound = tl.abs(tl.log(min_p)).to(tl.int32, bitcast=True) + 1
    if top_k > 0:
        key, num_nearer = _first_bound(
            logits, size, largest, temperature, bound, num_ties, top_k, True, BLOCK
        )
        if key < bound:
            bound = key
            num_ties = (top_k - num_nearer).to(tl.int32)
    farthest_pivots = tl.full([8], 0x7F800000, tl.int32)
    if top_p < 1:
        mass = _masses(
            logits, size, largest, temperature, bound, num_ties, farthest_pivots, False, BLOCK
        )
        wanted = top_p * tl.max(mass, 0)
        key, nearer = _first_bound(
            logits, size, largest, temperature, bound, num_ties, wanted, False, BLOCK
        )
        if key <= bound:
            each = tl.exp(-key.to(tl.float32, bitcast=True)).to(tl.float64)
            num = tl.maximum(tl.ceil((wanted - nearer) / each), 1.0)
            num = tl.minimum(num, size.to(tl.float64)).to(tl.int32)
            num_ties = tl.where(key == bound, tl.minimum(num, num_ties), num)
            bound = key

    mass = _masses(
        logits, size, largest, temperature, bound, num_ties, farthest_pivots, False, BLOCK
    )
    target = uniform * tl.max(mass, 0)
    passed = tl.zeros([], tl.float64)
    ties_before = tl.zeros([], tl.int32)
    token = size
    last = tl.zeros([], tl.int32)
    start = tl.zeros([], tl.int32)
    # As far as the token: the rest doesn't matter.
    while (start < size) & (token == size):
        place = start + tl.arange(0, BLOCK)
        below = _distances(logits, place, size, largest, temperature)
        key = below.to(tl.int32, bitcast=True)
        is_tie = (key == bound).to(tl.int32)
        rank = tl.cumsum(is_tie, 0) - is_tie + ties_before
        ties_before += tl.sum(is_tie, 0)
        stays = (key < bound) | ((is_tie > 0) & (rank < num_ties))
        weight = tl.where(stays, tl.exp(-below), 0.0).to(tl.float64)
        reached = passed + tl.cumsum(weight, 0)
        token = tl.minimum(token, tl.min(tl.where(stays & (reached > target), place, size), 0))
        last = tl.maximum(last, tl.max(tl.where(weight > 0, place, 0), 0))
        passed += tl.sum(weight, 0)
        start += BLOCK
    # Rounding may put the target at the sum itself.
    tl.store(tokens + row, tl.where(token < size, token, last))
