"""Finds the bounds that filters put on how far tokens may lie below the likeliest, without sorting.

The range of bounds is divided in eight, pass after pass, each a launch in which a program has a
chunk of a row. A pass reads what the one before it found, and writes beside it. Bounds and
distances are told by the bits of a float32, which are in the same order and end with infinity's.
"""

from typing import Final

from triton import jit
from triton import language as tl

from antiphon_engine.cuda.kernels.adjusting import NUM_PARAMS, finite

PASSES: Final = 12
"""Of a search: one for the whole mass, and eleven that leave an eighth of the range each."""
STATES: Final = 5
"""What a row's search hands on, float64: the least bound that is left, the mass below it, the mass
that is wanted, the bound of the filters before, how many of its ties stay."""

_PASSES = tl.constexpr(PASSES)
_STATES = tl.constexpr(STATES)
_FARTHEST = tl.constexpr(0x7F800000)


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
def _sums(masses, index, num_chunks, CHUNKS: tl.constexpr):
    """Returns what of a row lies up to each of the last pass's bounds."""
    chunk, pivot = tl.arange(0, CHUNKS), tl.arange(0, 8)
    place = (index * num_chunks + chunk)[:, None] * 8 + pivot[None, :]
    return tl.sum(tl.load(masses + place, mask=(chunk < num_chunks)[:, None], other=0.0), 0)


@jit
def _width(number):
    """Returns how many bounds lie between two pivots of a pass, from 1 on."""
    return tl.full([], 1, tl.int64) << tl.maximum(31 - 3 * number, 0).to(tl.int64)


@jit
def _narrowed(state, masses, index, number, num_chunks, CHUNKS: tl.constexpr):
    """Returns the least bound that is left, and the mass below it, by what pass `number` found."""
    mass = _sums(masses, index, num_chunks, CHUNKS)
    is_short = mass < tl.load(state + 2)
    below = tl.maximum(tl.load(state + 1), tl.max(tl.where(is_short, mass, 0.0), 0))
    low = tl.load(state).to(tl.int64) + _width(number) * tl.sum(is_short.to(tl.int64), 0)
    return low, below


@jit
def _concluded(state, masses, index, size, num_chunks, counts, CHUNKS: tl.constexpr):
    """Returns the bound that a search has found behind its last pass, and how many ties stay."""
    low, nearer = _narrowed(state, masses, index, _PASSES - 1, num_chunks, CHUNKS)
    wanted, bound = tl.load(state + 2), tl.load(state + 3).to(tl.int32)
    num_ties = tl.load(state + 4).to(tl.int32)
    key = tl.minimum(low, _FARTHEST).to(tl.int32)
    each = tl.where(counts, 1.0, weight_of(key))
    num = tl.maximum(tl.ceil((wanted - nearer) / each), 1.0)
    num = tl.minimum(num, size.to(tl.float64)).to(tl.int32)
    is_nearer = (key < bound) | ((key == bound) & (counts == 0))
    # At the bound of the filters before there are not more ties than those left.
    num = tl.where(key == bound, tl.minimum(num, num_ties), num)
    return tl.where(is_nearer, key, bound), tl.where(is_nearer, num, num_ties)


@jit
def staying(states, masses, how, index, num_rows, size, num_chunks, CHUNKS: tl.constexpr):
    """Returns the bound below which a row's tokens stay, and how many at it do, of the lowest ids.

    Behind all searches of the row.
    """
    top_k, top_p = tl.load(how + 1), tl.load(how + 2)
    bound, num_ties = _first_bound(tl.load(how + 3)), tl.zeros([], tl.int32)
    if (top_k > 0) | (top_p < 1):
        # Whichever search was the last, its last pass had an odd number.
        state = states + (num_rows + index) * _STATES
        odd_masses = masses + num_rows.to(tl.int64) * num_chunks * 8
        bound, num_ties = _concluded(state, odd_masses, index, size, num_chunks, top_p >= 1, CHUNKS)
    return bound, num_ties


@jit
def _pivots(state, masses, index, passed, top_k, top_p, num_chunks, counts, CHUNKS: tl.constexpr):
    """Returns the bounds of a pass from 1 on.

    That is: the least that is left, the mass below it, the mass that is wanted, and eight of those
    that are left.
    """
    if passed == 1:
        share = top_p * tl.max(_sums(masses, index, num_chunks, CHUNKS), 0)
        wanted = tl.where(counts, top_k, share)
        low, below = tl.zeros([], tl.int64), tl.zeros([], tl.float64)
    else:
        wanted = tl.load(state + 2)
        low, below = _narrowed(state, masses, index, passed - 1, num_chunks, CHUNKS)
    ends = low + _width(passed) * (1 + tl.arange(0, 8).to(tl.int64)) - 1
    return low, below, wanted, tl.minimum(ends, _FARTHEST).to(tl.int32)


@jit
def _masses(
    logits,
    first,
    size,
    largest,
    temperature,
    bound,
    pivots,
    counts,
    CHUNK: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Returns what of a chunk's tokens below the bound lies up to each of eight bounds.

    Weights, or with `counts` how many they are. Sums are taken by thread, and put together once.
    """
    found = tl.zeros([BLOCK, 8], tl.float32)
    for start in range(0, CHUNK, BLOCK):
        place = first + start + tl.arange(0, BLOCK)
        below = distances(logits, place, size, largest, temperature)
        key = below.to(tl.int32, bitcast=True)
        weight = tl.where(key < bound, tl.where(counts, 1.0, tl.exp(-below)), 0.0)
        found += tl.where(key[:, None] <= pivots[None, :], weight[:, None], 0.0)
    return tl.sum(found.to(tl.float64), 0)


@jit(
    do_not_specialize=["num_rows", "size", "number"],
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
    number,
    CHUNK: tl.constexpr,
    BLOCK: tl.constexpr,
    CHUNKS: tl.constexpr,
):
    """Pass `number` of all searches: the first is top-k's where there is one, the last top-p's."""
    index, chunk, num_chunks = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    row = tl.load(rows + index).to(tl.int64)
    if row < 0:
        return
    how = slot_params + tl.load(slots + index).to(tl.int64) * NUM_PARAMS
    temperature = tl.load(how).to(tl.float32)
    top_k, top_p = tl.load(how + 1), tl.load(how + 2)
    passed, is_second = number % _PASSES, number >= _PASSES
    counts = (top_k > 0) & (number < _PASSES)
    is_wanted = counts | ((top_p < 1) & ((top_k > 0) == is_second))
    if (temperature == 0) | (is_wanted == 0):
        return
    this, last = number % 2 * num_rows + index, (number + 1) % 2 * num_rows + index
    state, last_state = states + this * _STATES, states + last * _STATES
    last_masses = masses + (last - index).to(tl.int64) * num_chunks * 8

    low, below = tl.zeros([], tl.int64), tl.zeros([], tl.float64)
    wanted, pivots = tl.zeros([], tl.float64), tl.full([8], _FARTHEST, tl.int32)
    if passed == 0:
        bound, num_ties = _first_bound(tl.load(how + 3)), tl.zeros([], tl.int32)
        if is_second:
            bound, num_ties = _concluded(
                last_state, last_masses, index, size, num_chunks, top_k > 0, CHUNKS
            )
    else:
        bound = tl.load(last_state + 3).to(tl.int32)
        num_ties = tl.load(last_state + 4).to(tl.int32)
        low, below, wanted, pivots = _pivots(
            last_state, last_masses, index, passed, top_k, top_p, num_chunks, counts, CHUNKS
        )
    largest = largest_logit(maxima, index, num_chunks, CHUNKS)
    mass = _masses(
        logits + row * size, chunk * CHUNK, size, largest, temperature, bound, pivots, counts,
        CHUNK, BLOCK,
    )  # fmt: skip
    if chunk == 0:
        # All ties of the filters before weigh the same.
        each = tl.where(counts, 1.0, weight_of(bound))
        mass += tl.where(pivots >= bound, num_ties.to(tl.float64) * each, 0.0)
        tl.store(state, low.to(tl.float64))
        tl.store(state + 1, below)
        tl.store(state + 2, wanted)
        tl.store(state + 3, bound.to(tl.float64))
        tl.store(state + 4, num_ties.to(tl.float64))
    place = (this.to(tl.int64) * num_chunks + chunk) * 8
    tl.store(masses + place + tl.arange(0, 8), mass)
