"""What programs do before and behind a product's loop, whatever the weights are stored as.

Shape suffixes: M rows, K input features, N output features; a gate-up pair has 2N.
"""

from triton import jit
from triton import language as tl

from antiphon_engine.cuda.kernels.launching import let_next_start, prefetch, wait_for_previous


@jit
def start_product(
    weights, feature, N, K, first, mask,
    GATE_UP: tl.constexpr, OVERLAP: tl.constexpr, PREFETCH: tl.constexpr,
):  # fmt: skip
    """Fetches the first weights while the kernel before ends, and waits for it."""
    let_next_start(OVERLAP)
    if PREFETCH > 0:
        line = (tl.arange(0, PREFETCH) * 64)[None, :]
        row = tl.where(mask, feature, 0).to(tl.int64)[:, None] * K
        prefetch(weights + row + first + line)
        if GATE_UP:
            prefetch(weights + row + N.to(tl.int64) * K + first + line)
    wait_for_previous(OVERLAP)


@jit
def load_tile(places, mask, MASKED: tl.constexpr):
    """Loads where the mask is, or everywhere."""
    return tl.load(places, mask=mask, other=0.0) if MASKED else tl.load(places)


@jit
def load_bias(places, mask):
    """Returns the bias in the first split, and zeros in the others."""
    values = tl.load(places, mask=mask, other=0.0).to(tl.float32)
    return tl.where(tl.program_id(2) == 0, values, 0.0)


@jit
def silu(x):
    """Returns x times its logistic function."""
    return x / (1.0 + tl.exp(-x))


@jit
def finish_product(
    sums, y, partials, place, mask, arrivals, num_partials,
    SPLITS: tl.constexpr, ADD: tl.constexpr,
):  # fmt: skip
    """Writes a tile, or a split's part of it; the last split of a tile sums all of them."""
    if SPLITS == 1:
        if ADD:
            sums += tl.load(y + place, mask=mask, other=0.0).to(tl.float32)
        tl.store(y + place, sums.to(y.dtype.element_ty), mask=mask)
    else:
        tl.store(partials + tl.program_id(2) * num_partials + place, sums, mask=mask)
        # All of this program's stores come before its arrival, and all loads behind the last one.
        tl.debug_barrier()
        num_before = tl.atomic_add(arrivals + tl.program_id(1), 1, sem="acq_rel")
        if num_before == SPLITS - 1:
            tl.debug_barrier()
            total = tl.load(partials + place, mask=mask, other=0.0, cache_modifier=".cg")
            for split in tl.static_range(1, SPLITS):
                total += tl.load(
                    partials + split * num_partials + place,
                    mask=mask, other=0.0, cache_modifier=".cg",
                )  # fmt: skip
            if ADD:
                total += tl.load(y + place, mask=mask, other=0.0).to(tl.float32)
            tl.store(y + place, total.to(y.dtype.element_ty), mask=mask)
            tl.store(arrivals + tl.program_id(1), 0)
