"""Products with few rows: y = x Wᵀ, at the rate at which the weights can be read.

What stands around a product is computed with it: RMSNorm of the rows before, SiLU and the product
of a gate-up pair, or the sum with what y holds, behind. Where the matrix has too few rows to keep
the device busy, its columns are split among programs, and whoever comes last sums in fixed order.

A row's numbers depend on the configuration alone: not on how many rows are computed, nor where in
them it is. So one configuration for all numbers of rows makes products batch-invariant; one for
each range of them, as is measured for speed, does so within a range.

Weights in 8-bit floats have kernels of their own: see `narrow_products`.

Shape suffixes: M rows, K input features, N output features; a gate-up pair has 2N.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from triton import cdiv, jit, next_power_of_2
from triton import language as tl

from antiphon_engine.cuda.kernels.launching import launch_options
from antiphon_engine.cuda.kernels.narrow_products import (
    SCALE_BLOCK,
    narrow_row_kernel,
    narrow_rows_kernel,
    pair_span,
)
from antiphon_engine.cuda.kernels.product_parts import (
    finish_product,
    load_bias,
    load_tile,
    silu,
    start_product,
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
    """Contiguous; of a gate-up pair [2N, K], the gate's rows first. Of the type of x; or e4m3, as
    `interleave` makes it."""
    scale: Tensor | None = None
    """float32, of e4m3 alone: what weights are multiplied by, [N] or [2N] by rows of the matrix, or
    by blocks of `SCALE_BLOCK` rows and columns, [N / block, K / block]."""
    bias_N: Tensor | None = None
    norm_epsilon: float | None = None
    """Rows of x are divided by their root mean square first; None: they aren't."""
    columns_K: Tensor | None = None
    """What features of x are multiplied by, of e4m3 alone and of x's type; None: by nothing."""
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

    @cached_property
    def pairs(self) -> Tensor:
        """e4m3 weights as pairs: int16 [N, K / 2]."""
        return self.weight_NK.view(torch.int16)

    @property
    def is_narrow(self) -> bool:
        """Whether weights are of e4m3."""
        return self.scale is not None

    @property
    def is_block_scaled(self) -> bool:
        """Whether scales change along a row."""
        return self.scale is not None and self.scale.ndim == 2

    def can_split(self, config: ProductConfig) -> bool:
        """Whether programs may share the input features: what isn't linear needs all of them.

        By 8-bit weights, what several rows are divided by is summed with the rest.
        """
        if self.is_narrow and not config.one_row and not self.is_added:
            return not self.is_gate_up
        return self.norm_epsilon is None and not self.is_gate_up


@dataclass(frozen=True, slots=True)
class Workspace:
    """What programs that share a product leave for each other. Products in order may share it."""

    partials: Tensor
    """float32 [splits, M, N], behind it perhaps [splits, tiles, M], and more."""
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
        num_tiles: int = cdiv(product.num_out, config.block_out)
        num_partials = config.num_splits * num_rows * (product.num_out + num_tiles)
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
        x_MK: Of the matrix's type; where that is e4m3, of bfloat16 or float32.
        y_MN: What is computed.
        config: `block_rows` 0 takes up to 256 rows, `one_row` takes one.
        workspace: One that fits.
        overlap: Whether the kernel may start before the one in front of it has ended.
        only_compile: Compiles the kernel where it isn't yet, and launches nothing.
    """
    num_rows = x_MK.shape[0]
    block_rows = config.block_rows or max(16, next_power_of_2(num_rows))
    num_row_tiles = 1 if config.one_row else cdiv(num_rows, block_rows)
    assert config.num_splits == 1 or (product.can_split(config) and num_row_tiles == 1)
    assert not config.one_row or num_rows == 1
    launch = _launch_narrow if product.is_narrow else _launch_wide
    launch(
        product, x_MK, y_MN, config, workspace,
        BLOCK_M=block_rows,
        BLOCK_N=config.block_out,
        STAGES=config.num_stages,
        SPLITS=config.num_splits,
        NORM=product.norm_epsilon is not None,
        GATE_UP=product.is_gate_up,
        ADD=product.is_added,
        BIAS=product.bias_N is not None,
        EVEN_N=product.num_out % config.block_out == 0,
        OVERLAP=overlap,
        num_warps=config.num_warps,
        grid=(num_row_tiles, cdiv(product.num_out, config.block_out), config.num_splits),
        warmup=only_compile,
        **launch_options(overlap=overlap),
    )  # fmt: skip


def _launch_wide(
    product: Product, x_MK: Tensor, y_MN: Tensor, config: ProductConfig, workspace: Workspace,
    **options: object,
) -> None:  # fmt: skip
    num_in = product.num_in
    per_split = cdiv(num_in, config.block_in * config.num_splits) * config.block_in
    kernel = _one_row_kernel if config.one_row else _rows_kernel
    kernel.run(
        x_MK,
        product.weight_NK,
        y_MN if product.bias_N is None else product.bias_N,
        y_MN,
        workspace.partials,
        workspace.arrivals,
        x_MK.shape[0],
        product.num_out,
        num_in,
        product.norm_epsilon or 0.0,
        BLOCK_K=config.block_in,
        EVEN_K=num_in == per_split * config.num_splits,
        PREFETCH=_prefetched(config, per_split * x_MK.element_size(), options),
        **options,
    )


def _launch_narrow(
    product: Product, x_MK: Tensor, y_MN: Tensor, config: ProductConfig, workspace: Workspace,
    **options: object,
) -> None:  # fmt: skip
    assert not product.is_block_scaled or can_scale_blocks(product, config)
    num_pairs, block_pairs = product.num_in // 2, config.block_in // 2
    per_split = cdiv(num_pairs, block_pairs * config.num_splits) * block_pairs
    kernel = narrow_row_kernel if config.one_row else narrow_rows_kernel
    kernel.run(
        x_MK,
        product.pairs,
        x_MK if product.columns_K is None else product.columns_K,
        y_MN if product.bias_N is None else product.bias_N,
        product.scale,
        y_MN,
        workspace.partials,
        workspace.arrivals,
        x_MK.shape[0],
        product.num_out,
        num_pairs,
        product.norm_epsilon or 0.0,
        BLOCK_P=block_pairs,
        SCALE=SCALE_BLOCK if product.is_block_scaled else 1,
        SPAN=pair_span(product.num_in),
        EVEN_P=num_pairs == per_split * config.num_splits,
        COLUMNS=product.columns_K is not None,
        FAST=x_MK.is_cuda and x_MK.dtype is torch.bfloat16,
        PREFETCH=_prefetched(config, 2 * per_split, options),
        **options,
    )


def can_scale_blocks(product: Product, config: ProductConfig) -> bool:
    """Returns whether no tile of a configuration has weights of two blocks of scales.

    Where one row is multiplied, only the rows of a tile must be in one.
    """
    is_in_rows = SCALE_BLOCK % config.block_out == 0 and product.num_out % SCALE_BLOCK == 0
    return is_in_rows and (config.one_row or SCALE_BLOCK % config.block_in == 0)


def _prefetched(config: ProductConfig, row_bytes: int, options: Mapping[str, object]) -> int:
    """Returns how many lines of each row of weights are fetched before the kernel may read x."""
    lines = min(config.prefetch_lines, row_bytes // _LINE_BYTES)
    return 1 << (lines.bit_length() - 1) if options["OVERLAP"] and lines else 0


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
    start_product(w, feature, N, K, first, is_feature, GATE_UP, OVERLAP, PREFETCH)
    sums = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    up_sums = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    squares = tl.zeros([BLOCK_M], tl.float32)
    for at in tl.range(first, tl.minimum(first + per_split, K), BLOCK_K, num_stages=STAGES):
        is_in = is_feature[:, None] & (at + k < K)[None, :]
        if EVEN_K:
            x_tile = tl.load(rows + at, mask=is_row[None, :], other=0.0)
        else:
            x_tile = tl.load(rows + at, mask=is_row[None, :] & (at + k < K)[:, None], other=0.0)
        w_tile = load_tile(weights + at, is_in, not (EVEN_N and EVEN_K))
        sums = tl.dot(w_tile, x_tile, sums, input_precision="ieee")
        if GATE_UP:
            up_tile = load_tile(up + at, is_in, not (EVEN_N and EVEN_K))
            up_sums = tl.dot(up_tile, x_tile, up_sums, input_precision="ieee")
        if NORM:
            wide = x_tile.to(tl.float32)
            squares += tl.sum(wide * wide, 0)
    if NORM:
        scale = tl.rsqrt(squares / K + epsilon)[None, :]
        sums *= scale
        up_sums *= scale
    if BIAS:
        sums += load_bias(bias + feature, is_feature)[:, None]
        if GATE_UP:
            up_sums += load_bias(bias + N + feature, is_feature)[:, None]
    if GATE_UP:
        sums = silu(sums) * up_sums
    place = row.to(tl.int64)[None, :] * N + feature[:, None]
    mask = is_row[None, :] & is_feature[:, None]
    finish_product(sums, y, partials, place, mask, arrivals, M * N, SPLITS, ADD)


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
    start_product(w, feature, N, K, first, is_feature, GATE_UP, OVERLAP, PREFETCH)
    products = tl.zeros([BLOCK_N, BLOCK_K], tl.float32)
    up_products = tl.zeros([BLOCK_N, BLOCK_K], tl.float32)
    squares = tl.zeros([BLOCK_K], tl.float32)
    for at in tl.range(first, tl.minimum(first + per_split, K), BLOCK_K, num_stages=STAGES):
        is_in = is_feature[:, None] & (at + k < K)[None, :]
        x_tile = load_tile(x + at + k, at + k < K, not EVEN_K).to(tl.float32)
        w_tile = load_tile(weights + at, is_in, not (EVEN_N and EVEN_K))
        products += w_tile.to(tl.float32) * x_tile[None, :]
        if GATE_UP:
            up_tile = load_tile(up + at, is_in, not (EVEN_N and EVEN_K))
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
        sums += load_bias(bias + feature, is_feature)
        if GATE_UP:
            up_sums += load_bias(bias + N + feature, is_feature)
    if GATE_UP:
        sums = silu(sums) * up_sums
    finish_product(sums, y, partials, feature, is_feature, arrivals, N, SPLITS, ADD)
