"""Products with few rows: y = x Wᵀ, at the rate at which the weights can be read.

What stands around a product is computed with it: RMSNorm of the rows before, SiLU and the product
of a gate-up pair, or the sum with what y holds, behind. Where the matrix has too few rows to keep
the device busy, its columns are split among programs, and whoever comes last sums in fixed order.

A row's numbers depend on the configuration alone: not on how many rows are computed, nor where in
them it is. So one configuration for all numbers of rows makes products batch-invariant; one for
each range of them, as is measured for speed, does so within a range.

Shape suffixes: M rows, K input features, N output features; a gate-up pair has 2N.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from triton import cdiv, jit, next_power_of_2
from triton import language as tl

from antiphon_engine.cuda.kernels.launching import (
    launch_options,
    let_next_start,
    prefetch,
    wait_for_previous,
)

_LINE_BYTES = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductConfig:
    """How a product is divided among programs."""

    block_out: int
    """Output features of a program."""
    block_in: int
    """Input features of one turn of its loop."""
    num_stages: int
    num_warps: int
    num_splits: int = 1
    """Programs that share the input features."""
    one_row: bool = False
    """Whether the row is multiplied without matrix instructions; there is one, then."""
    block_rows: int = 0
    """Rows of a program, a power of two from 16; 0: all, rounded up."""
    prefetch_lines: int = 16
    """Lines of each row of weights fetched while the kernel before ends; a power of two."""


@dataclass(frozen=True, kw_only=True)
class Product:
    """A matrix and what is computed with it."""

    weight_NK: Tensor
    """Contiguous; of a gate-up pair [2N, K], the gate's rows first."""
    bias_N: Tensor | None = None
    norm_epsilon: float | None = None
    """Rows of x are divided by their root mean square first; None: they aren't."""
    is_gate_up: bool = False
    """y = silu(gate) * up."""
    is_added: bool = False
    """y += instead of y =."""

    @cached_property
    def num_in(self) -> int:
        """K."""
        return self.weight_NK.shape[1]

    @cached_property
    def num_out(self) -> int:
        """N."""
        return self.weight_NK.shape[0] // (2 if self.is_gate_up else 1)

    def can_split(self) -> bool:
        """Whether programs may share the input features: what isn't linear needs all of them."""
        return self.norm_epsilon is None and not self.is_gate_up


@dataclass(frozen=True, slots=True)
class Workspace:
    """What programs that share a product leave for each other. Products in order may share it."""

    partials: Tensor
    """float32 [splits, M, N] and more."""
    arrivals: Tensor
    """int32, zeros between products."""

    @classmethod
    def allocate(cls, *, num_partials: int, device: torch.device) -> "Workspace":
        """Returns a workspace for products with at most so many partial sums."""
        return cls(
            torch.empty(num_partials, dtype=torch.float32, device=device),
            torch.zeros(1 << 16, dtype=torch.int32, device=device),
        )

    def fits(self, product: Product, num_rows: int, config: ProductConfig) -> bool:
        """Whether a product can be computed with it."""
        if config.num_splits == 1:
            return True
        num_partials = config.num_splits * num_rows * product.num_out
        num_tiles = cdiv(product.num_out, config.block_out)
        return num_partials <= self.partials.numel() and num_tiles <= self.arrivals.numel()


def multiply(
    product: Product,
    x_MK: Tensor,
    y_MN: Tensor,
    *,
    config: ProductConfig,
    workspace: Workspace,
    overlap: bool = False,
    only_compile: bool = False,
) -> None:
    """Launches a product. x and y are contiguous; y is of any float type.

    Args:
        product: The matrix.
        x_MK: Of the matrix's type.
        y_MN: What is computed.
        config: `block_rows` 0 takes up to 256 rows, `one_row` takes one.
        workspace: One that fits.
        overlap: Whether the kernel may start before the one in front of it has ended.
        only_compile: Compiles the kernel where it isn't yet, and launches nothing.
    """
    num_rows = x_MK.shape[0]
    block_rows = config.block_rows or max(16, next_power_of_2(num_rows))
    num_row_tiles = 1 if config.one_row else cdiv(num_rows, block_rows)
    assert config.num_splits == 1 or (product.can_split() and num_row_tiles == 1)
    assert not config.one_row or num_rows == 1
    num_in, num_out = product.num_in, product.num_out
    per_split = cdiv(num_in, config.block_in * config.num_splits) * config.block_in
    lines = min(config.prefetch_lines, per_split * x_MK.element_size() // _LINE_BYTES)
    kernel = _one_row_kernel if config.one_row else _rows_kernel
    kernel.run(
        x_MK,
        product.weight_NK,
        y_MN if product.bias_N is None else product.bias_N,
        y_MN,
        workspace.partials,
        workspace.arrivals,
        num_rows,
        num_out,
        num_in,
        product.norm_epsilon or 0.0,
        BLOCK_M=block_rows,
        BLOCK_N=config.block_out,
        BLOCK_K=config.block_in,
        STAGES=config.num_stages,
        SPLITS=config.num_splits,
        NORM=product.norm_epsilon is not None,
        GATE_UP=product.is_gate_up,
        ADD=product.is_added,
        BIAS=product.bias_N is not None,
        EVEN_N=num_out % config.block_out == 0,
        EVEN_K=num_in == per_split * config.num_splits,
        OVERLAP=overlap,
        PREFETCH=1 << (lines.bit_length() - 1) if overlap and lines else 0,
        num_warps=config.num_warps,
        grid=(num_row_tiles, cdiv(num_out, config.block_out), config.num_splits),
        warmup=only_compile,
        **launch_options(overlap=overlap),
    )


@jit
def _start(
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
def _load(places, mask, MASKED: tl.constexpr):
    return tl.load(places, mask=mask, other=0.0) if MASKED else tl.load(places)


@jit
def _bias(places, mask):
    """Returns the bias in the first split, and zeros in the others."""
    values = tl.load(places, mask=mask, other=0.0).to(tl.float32)
    return tl.where(tl.program_id(2) == 0, values, 0.0)


@jit
def _silu(x):
    return x / (1.0 + tl.exp(-x))


@jit
def _finish(
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


@jit(do_not_specialize=["M"])
def _rows_kernel(
    x, w, bias, y, partials, arrivals, M, N, K, epsilon,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, STAGES: tl.constexpr,
    SPLITS: tl.constexpr, NORM: tl.constexpr, GATE_UP: tl.constexpr, ADD: tl.constexpr,
    BIAS: tl.constexpr, EVEN_N: tl.constexpr, EVEN_K: tl.constexpr, OVERLAP: tl.constexpr,
    PREFETCH: tl.constexpr,
):  # fmt: skip
    """Grid: tiles of rows, tiles of output features, splits. Weights are the left operand."""
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    feature = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    per_split = tl.cdiv(K, BLOCK_K * SPLITS) * BLOCK_K
    first = tl.program_id(2) * per_split
    is_feature = feature < N
    is_row = row < M
    weights = w + feature.to(tl.int64)[:, None] * K + k[None, :]
    up = weights + N.to(tl.int64) * K
    rows = x + row.to(tl.int64)[None, :] * K + k[:, None]
    _start(w, feature, N, K, first, is_feature, GATE_UP, OVERLAP, PREFETCH)
    sums = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    up_sums = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    squares = tl.zeros([BLOCK_M], tl.float32)
    for at in tl.range(first, tl.minimum(first + per_split, K), BLOCK_K, num_stages=STAGES):
        is_in = is_feature[:, None] & (at + k < K)[None, :]
        if EVEN_K:
            x_tile = tl.load(rows + at, mask=is_row[None, :], other=0.0)
        else:
            x_tile = tl.load(rows + at, mask=is_row[None, :] & (at + k < K)[:, None], other=0.0)
        w_tile = _load(weights + at, is_in, not (EVEN_N and EVEN_K))
        sums = tl.dot(w_tile, x_tile, sums, input_precision="ieee")
        if GATE_UP:
            up_tile = _load(up + at, is_in, not (EVEN_N and EVEN_K))
            up_sums = tl.dot(up_tile, x_tile, up_sums, input_precision="ieee")
        if NORM:
            wide = x_tile.to(tl.float32)
            squares += tl.sum(wide * wide, 0)
    if NORM:
        scale = tl.rsqrt(squares / K + epsilon)[None, :]
        sums *= scale
        up_sums *= scale
    if BIAS:
        sums += _bias(bias + feature, is_feature)[:, None]
        if GATE_UP:
            up_sums += _bias(bias + N + feature, is_feature)[:, None]
    if GATE_UP:
        sums = _silu(sums) * up_sums
    place = row.to(tl.int64)[None, :] * N + feature[:, None]
    mask = is_row[None, :] & is_feature[:, None]
    _finish(sums, y, partials, place, mask, arrivals, M * N, SPLITS, ADD)


@jit(do_not_specialize=["M"])
def _one_row_kernel(
    x, w, bias, y, partials, arrivals, M, N, K, epsilon,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, STAGES: tl.constexpr,
    SPLITS: tl.constexpr, NORM: tl.constexpr, GATE_UP: tl.constexpr, ADD: tl.constexpr,
    BIAS: tl.constexpr, EVEN_N: tl.constexpr, EVEN_K: tl.constexpr, OVERLAP: tl.constexpr,
    PREFETCH: tl.constexpr,
):  # fmt: skip
    """As `_rows_kernel`, for one row: products are summed at the end of the loop only."""
    feature = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    per_split = tl.cdiv(K, BLOCK_K * SPLITS) * BLOCK_K
    first = tl.program_id(2) * per_split
    is_feature = feature < N
    weights = w + feature.to(tl.int64)[:, None] * K + k[None, :]
    up = weights + N.to(tl.int64) * K
    _start(w, feature, N, K, first, is_feature, GATE_UP, OVERLAP, PREFETCH)
    products = tl.zeros([BLOCK_N, BLOCK_K], tl.float32)
    up_products = tl.zeros([BLOCK_N, BLOCK_K], tl.float32)
    squares = tl.zeros([BLOCK_K], tl.float32)
    for at in tl.range(first, tl.minimum(first + per_split, K), BLOCK_K, num_stages=STAGES):
        is_in = is_feature[:, None] & (at + k < K)[None, :]
        x_tile = _load(x + at + k, at + k < K, not EVEN_K).to(tl.float32)
        w_tile = _load(weights + at, is_in, not (EVEN_N and EVEN_K))
        products += w_tile.to(tl.float32) * x_tile[None, :]
        if GATE_UP:
            up_tile = _load(up + at, is_in, not (EVEN_N and EVEN_K))
            up_products += up_tile.to(tl.float32) * x_tile[None, :]
        if NORM:
            squares += x_tile * x_tile
    sums = tl.sum(products, 1)
    up_sums = tl.sum(up_products, 1)
    if NORM:
        scale = tl.rsqrt(tl.sum(squares, 0) / K + epsilon)
        sums *= scale
        up_sums *= scale
    if BIAS:
        sums += _bias(bias + feature, is_feature)
        if GATE_UP:
            up_sums += _bias(bias + N + feature, is_feature)
    if GATE_UP:
        sums = _silu(sums) * up_sums
    _finish(sums, y, partials, feature, is_feature, arrivals, N, SPLITS, ADD)
