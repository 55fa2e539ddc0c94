"""Finds the bounds that filters put on how far tokens may lie below the likeliest, without sorting.

The range of bounds is divided in eight, pass after pass, each a launch in which a program has a
part of a row. A pass reads what the one before it found, and writes beside it. Bounds and distances
are told by the bits of a float32, which are in the same order and end with infinity's. At first the
range is divided where distances double, from a quarter to 16: where bounds mostly are, so that two
or three passes less have anything to do.
"""

from typing import Final

from triton import jit
from triton import language as tl

from antiphon_engine.cuda.kernels.adjusting import NUM_PARAMS, finite

PASSES: Final = 12
"""Of a search; those behind the last that a row needs end at once."""
STATES: Final = 6
"""What a row's search hands on, float64: the least bound that is left, how many are, the mass below
it, the mass that is wanted, the bound of the filters before, how many of its ties stay."""

_PASSES = tl.constexpr(PASSES)
_STATES = tl.constexpr(STATES)
_FARTHEST = tl.constexpr(0x7F800000)
_QUARTER = tl.constexpr(0x3E800000)
_DOUBLED = tl.constexpr(1 << 23)
"""How many bounds lie between a distance and its double."""


@jit
def largest_logit(maxima, index, num_chunks, CHUNKS: tl.constexpr):
    """Returns a row's, of those of its chunks."""
    chunk = tl.arange(0, CHUNKS)
    mask = chunk < num_chunks
    return tl.max(tl.load(maxima + index * num_chunks + chunk, mask=mask, other=float("-inf")), 0)


@jit
def distances(logits, place, size, largest, temperature):
    """Returns how far tokens lie below the likeliest: at least 0; infinity behind the last."""
    logit = finite(tl.load(logits + place, mask=place < size, other=0.0))
    return tl.where(place < size, (largest - logit) / temperature, float("inf"))


@jit
def weight_of(key):
    """Returns what a token at a bound weighs."""
    return tl.exp(-key.to(tl.float32, bitcast=True)).to(tl.float64)


@jit
def _first_bound(min_p):
    """Returns what min-p leaves, as the bound below which tokens stay."""
    farthest = tl.abs(tl.log(tl.maximum(min_p.to(tl.float32), 1e-37)))
    # Not negated: the bits of minus zero are another key.
    return tl.where(min_p > 0, farthest.to(tl.int32, bitcast=True) + 1, _FARTHEST)


@jit
def _sums(masses, index, num_parts, PARTS: tl.constexpr):
    """Returns what of a row lies below each of the last pass's edges."""
    part, edge = tl.arange(0, PARTS), tl.arange(0, 8)
    place = (index * num_parts + part)[:, None] * 8 + edge[None, :]
    return tl.sum(tl.load(masses + place, mask=(part < num_parts)[:, None], other=0.0), 0)


@jit
def _edges(low, width):
    """Returns eight bounds that divide those that are left, the last one behind them; int64."""
    part = tl.arange(0, 8).to(tl.int64)
    doubled = tl.where(part == 7, _FARTHEST + 1, _QUARTER + part * _DOUBLED)
    return tl.where(width > _FARTHEST, doubled, low + (width + 7) // 8 * (part + 1))


@jit
def _narrowed(state, masses, index, num_parts, PARTS: tl.constexpr):
    """Returns the least bound that is left, how many are, and the mass below it and wanted.

    By what the last pass found, if it was one that had anything to do.
    """
    low, width = tl.load(state).to(tl.int64), tl.load(state + 1).to(tl.int64)
    below, wanted = tl.load(state + 2), tl.load(state + 3)
    if width > 1:
        mass = _sums(masses, index, num_parts, PARTS)
        if width > _FARTHEST:
            # `wanted` was a share as yet, or a number.
            wanted = tl.where(wanted < 1, wanted * tl.max(mass, 0), wanted)
        edges = _edges(low, width)
        is_short = mass < wanted
        below = tl.maximum(below, tl.max(tl.where(is_short, mass, 0.0), 0))
        low = tl.maximum(low, tl.max(tl.where(is_short, edges, 0), 0))
        # Where nothing reaches it, nothing is left to look for.
        end = tl.min(tl.where(is_short, _FARTHEST + 2, edges), 0)
        width = tl.where(end > _FARTHEST + 1, 1, end - low)
    return low, width, below, wanted


@jit
def _concluded(state, masses, index, size, num_parts, counts, PARTS: tl.constexpr):
    """Returns the bound that a search has found behind its last pass, and how many ties stay."""
    low, _, nearer, wanted = _narrowed(state, masses, index, num_parts, PARTS)
    bound, num_ties = tl.load(state + 4).to(tl.int32), tl.load(state + 5).to(tl.int32)
    key = tl.minimum(low, _FARTHEST).to(tl.int32)
    each = tl.where(counts, 1.0, weight_of(key))
    num = tl.maximum(tl.ceil((wanted - nearer) / each), 1.0)
    num = tl.minimum(num, size.to(tl.float64)).to(tl.int32)
    is_nearer = (key < bound) | ((key == bound) & (counts == 0))
    # At the bound of the filters before there are not more ties than those left.
    num = tl.where(key == bound, tl.minimum(num, num_ties), num)
    return tl.where(is_nearer, key, bound), tl.where(is_nearer, num, num_ties)


@jit
def staying(states, masses, how, index, num_rows, size, num_parts, PARTS: tl.constexpr):
    """Returns the bound below which a row's tokens stay, and how many at it do, of the lowest ids.

    Behind all searches of the row.
    """
    top_k, top_p = tl.load(how + 1), tl.load(how + 2)
    bound, num_ties = _first_bound(tl.load(how + 3)), tl.zeros([], tl.int32)
    if (top_k > 0) | (top_p < 1):
        # Whichever search was the last, its last pass had an odd number.
        state = states + (num_rows + index) * _STATES
        odd_masses = masses + num_rows.to(tl.int64) * num_parts * 8
        bound, num_ties = _concluded(state, odd_masses, index, size, num_parts, top_p >= 1, PARTS)
    return bound, num_ties


@jit
def _masses(
    logits, first, size, largest, temperature, bound, edges, counts, PART: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Returns what of a part's tokens below the bound lies below each of eight edges.

    Weights, or with `counts` how many they are. Sums are taken by thread, and put together once.
    """
    pivots = (edges - 1).to(tl.int32)
    found = tl.zeros([BLOCK, 8], tl.float32)
    for start in range(0, PART, BLOCK):
        place = first + start + tl.arange(0, BLOCK)
        below = distances(logits, place, size, largest, temperature)
        key = below.to(tl.int32, bitcast=True)
        weight = tl.where(key < bound, tl.where(counts, 1.0, tl.exp(-below)), 0.0)
        found += tl.where(key[:, None] <= pivots[None, :], weight[:, None], 0.0)
    return tl.sum(found.to(tl.float64), 0)


@jit
def _begun(state, masses, how, index, size, num_parts, counts, is_second, PARTS: tl.constexpr):
    """Returns what a search hands on at first. `state` and `masses` are of the search before."""
    bound, num_ties = _first_bound(tl.load(how + 3)), tl.zeros([], tl.int32)
    if is_second:
        bound, num_ties = _concluded(
            state, masses, index, size, num_parts, tl.load(how + 1) > 0, PARTS
        )
    low, width = tl.zeros([], tl.int64), tl.zeros([], tl.int64) + _FARTHEST + 1
    wanted = tl.where(counts, tl.load(how + 1), tl.load(how + 2))
    return low, width, tl.zeros([], tl.float64), wanted, bound, num_ties


@jit(
    do_not_specialize=["num_rows", "size", "num_chunks", "number"],
    do_not_specialize_on_alignment=["rows", "slots"],
)
def search_kernel(
    logits,
    rows,
    slots,
    slot_params,
    maxima,
    states,
    masses,
    num_rows,
    size,
    num_chunks,
    number,
    PART: tl.constexpr,
    BLOCK: tl.constexpr,
    CHUNKS: tl.constexpr,
    PARTS: tl.constexpr,
):
    """Pass `number` of all searches: the first is top-k's where there is one, the last top-p's."""
    index, part, num_parts = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    row = tl.load(rows + index).to(tl.int64)
    if row < 0:
        return
    how = slot_params + tl.load(slots + index).to(tl.int64) * NUM_PARAMS
    temperature = tl.load(how).to(tl.float32)
    top_k, top_p = tl.load(how + 1), tl.load(how + 2)
    is_second = number >= _PASSES
    counts = (top_k > 0) & (number < _PASSES)
    is_wanted = counts | ((top_p < 1) & ((top_k > 0) == is_second))
    if (temperature == 0) | (is_wanted == 0):
        return
    this, last = number % 2 * num_rows + index, (number + 1) % 2 * num_rows + index
    state, last_state = states + this * _STATES, states + last * _STATES
    last_masses = masses + (last - index).to(tl.int64) * num_parts * 8

    if number % _PASSES == 0:
        low, width, below, wanted, bound, num_ties = _begun(
            last_state, last_masses, how, index, size, num_parts, counts, is_second, PARTS
        )
    else:
        low, width, below, wanted = _narrowed(last_state, last_masses, index, num_parts, PARTS)
        bound = tl.load(last_state + 4).to(tl.int32)
        num_ties = tl.load(last_state + 5).to(tl.int32)
    if part == 0:
        tl.store(state, low.to(tl.float64))
        tl.store(state + 1, width.to(tl.float64))
        tl.store(state + 2, below)
        tl.store(state + 3, wanted)
        tl.store(state + 4, bound.to(tl.float64))
        tl.store(state + 5, num_ties.to(tl.float64))
    if width > 1:
        edges = _edges(low, width)
        largest = largest_logit(maxima, index, num_chunks, CHUNKS)
        mass = _masses(
            logits + row * size, part * PART, size, largest, temperature, bound, edges, counts,
            PART, BLOCK,
        )  # fmt: skip
        if part == 0:
            # All ties of the filters before weigh the same.
            each = tl.where(counts, 1.0, weight_of(bound))
            mass += tl.where(edges > bound, num_ties.to(tl.float64) * each, 0.0)
        place = (this.to(tl.int64) * num_parts + part) * 8
        tl.store(masses + place + tl.arange(0, 8), mass)
