"""Products with 8-bit floats (e4m3) as weights, which become the rows' type in registers, exactly.

So rows are multiplied as they are, and half as many bytes are read as with bfloat16. Scales of
matrix rows are applied to sums; scales of blocks, which change along a row, to each block's sum.

Weights lie in pairs: a span of features is followed in memory, byte by byte, by the next one. Then
a program loads pairs as 16-bit integers, which the matrix instructions' layouts are made for, and
takes them apart into two tiles of features in order, without moving bytes between threads.

Weights are the left operand: they have the more rows of the two.

Shape suffixes: M rows, K input features, P pairs of them, N output features; a gate-up pair has 2N.
"""

from typing import Final

import torch
from torch import Tensor
from triton import jit
from triton import language as tl

from antiphon_engine.cuda.kernels.narrow_pairs import first_of, second_of
from antiphon_engine.cuda.kernels.product_parts import (
    finish_product,
    load_bias,
    load_tile,
    silu,
    start_product,
)

SCALE_BLOCK: Final = 128
"""Rows and columns of a matrix that share a scale, where blocks do."""
_MOST_SPAN: Final = 64


def pair_span(num_in: int) -> int:
    """Returns how far apart the features of a pair are, a power of two; 0: they can't be paired."""
    return min(_MOST_SPAN, (num_in & -num_in) // 2)


def interleave(weight_NK: Tensor) -> Tensor:
    """Returns a matrix with the features of each pair side by side, of the same shape and type."""
    span = pair_span(weight_NK.shape[1])
    assert span
    bytes_NK = weight_NK.view(torch.uint8)
    pairs_NP2: Tensor = bytes_NK.unflatten(1, (-1, 2, span)).transpose(2, 3)
    return pairs_NP2.flatten(1).contiguous().view(weight_NK.dtype)


def deinterleave(weight_NK: Tensor) -> Tensor:
    """Returns what `interleave` was given."""
    span = pair_span(weight_NK.shape[1])
    bytes_NK = weight_NK.view(torch.uint8)
    spans_N2S: Tensor = bytes_NK.unflatten(1, (-1, span, 2)).transpose(2, 3)
    return spans_N2S.flatten(1).view(weight_NK.dtype)


@jit
def _add_tile(sums, pairs, first, second, block_scale, SCALE: tl.constexpr, FAST: tl.constexpr):
    """Returns sums with a tile's products added; the tile lies in one block of scales, if any."""
    part = sums
    if SCALE > 1:
        part = tl.zeros_like(sums)
    part = tl.dot(first_of(pairs, first, FAST), first, part, input_precision="ieee")
    part = tl.dot(second_of(pairs, second, FAST), second, part, input_precision="ieee")
    if SCALE > 1:
        part = sums + part * tl.load(block_scale)
    return part


@jit
def _row_scales(places, mask, SCALE: tl.constexpr):
    """Returns the scales of a tile's rows; ones, where blocks have scales."""
    if SCALE > 1:
        return mask.to(tl.float32)
    return tl.load(places, mask=mask, other=0.0)


@jit
def _block_scales(scale, BLOCK_N: tl.constexpr, N, P, SCALE: tl.constexpr):
    """Returns where scales of blocks lie for a tile, and how many come before those of the up."""
    num_in = tl.cdiv(2 * P, SCALE)
    return scale + tl.program_id(1) * BLOCK_N // SCALE * num_in, N // SCALE * num_in


@jit
def _finish_normed(
    sums, squares, bias, is_feature, y, partials, place, mask, row, is_row, arrivals, M, N, K,
    epsilon, SPLITS: tl.constexpr, BIAS: tl.constexpr,
):  # fmt: skip
    """As `finish_product`, where splits have sums of the rows' squares too: behind the others'."""
    tile, num_tiles, split = tl.program_id(1), tl.num_programs(1), tl.program_id(2)
    all_squares = partials + SPLITS * M * N + tile * M + row
    tl.store(partials + split * M * N + place, sums, mask=mask)
    tl.store(all_squares + split * num_tiles * M, squares, mask=is_row)
    tl.debug_barrier()
    num_before = tl.atomic_add(arrivals + tile, 1, sem="acq_rel")
    if num_before == SPLITS - 1:
        tl.debug_barrier()
        total = tl.load(partials + place, mask=mask, other=0.0, cache_modifier=".cg")
        of_row = tl.load(all_squares, mask=is_row, other=0.0, cache_modifier=".cg")
        for other in tl.static_range(1, SPLITS):
            total += tl.load(
                partials + other * M * N + place, mask=mask, other=0.0, cache_modifier=".cg"
            )
            of_row += tl.load(
                all_squares + other * num_tiles * M, mask=is_row, other=0.0, cache_modifier=".cg"
            )
        total *= tl.rsqrt(of_row / K + epsilon)[None, :]
        if BIAS:
            total += tl.load(bias, mask=is_feature, other=0.0).to(tl.float32)[:, None]
        tl.store(y + place, total.to(y.dtype.element_ty), mask=mask)
        tl.store(arrivals + tile, 0)


@jit
def _first_features(at, pair, BLOCK_P: tl.constexpr, SPAN: tl.constexpr):
    """Returns which features come first in the pairs of a tile."""
    if BLOCK_P >= SPAN:
        features = 2 * at + pair // SPAN * (2 * SPAN) + pair % SPAN
    else:
        features = at // SPAN * (2 * SPAN) + at % SPAN + pair
    return features


@jit
def _times_columns(
    first, second, places, mask, SPAN: tl.constexpr, COLUMNS: tl.constexpr, MASKED: tl.constexpr
):
    """Returns both features of rows' pairs times what stands at these places, if anything does."""
    if COLUMNS:
        first *= load_tile(places, mask, MASKED)[:, None]
        second *= load_tile(places + SPAN, mask, MASKED)[:, None]
    return first, second


@jit(do_not_specialize=["M"])
def narrow_rows_kernel(
    x, w, columns, bias, scale, y, partials, arrivals, M, N, P, epsilon,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_P: tl.constexpr, STAGES: tl.constexpr,
    SPLITS: tl.constexpr, NORM: tl.constexpr, COLUMNS: tl.constexpr, GATE_UP: tl.constexpr,
    ADD: tl.constexpr, BIAS: tl.constexpr, SCALE: tl.constexpr, SPAN: tl.constexpr,
    EVEN_N: tl.constexpr, EVEN_P: tl.constexpr, FAST: tl.constexpr, OVERLAP: tl.constexpr,
    PREFETCH: tl.constexpr,
):  # fmt: skip
    """Grid: tiles of rows, of output features, splits. SCALE: features of a scale, or 1."""
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    feature = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    pair = tl.arange(0, BLOCK_P)
    per_split = tl.cdiv(P, BLOCK_P * SPLITS) * BLOCK_P
    first_pair = tl.program_id(2) * per_split
    is_feature = feature < N
    is_row = row < M
    weights = w + feature.to(tl.int64)[:, None] * P + pair[None, :]
    up = weights + N.to(tl.int64) * P
    rows = x + row.to(tl.int64)[None, :] * (2 * P)
    block_scales, num_blocks = _block_scales(scale, BLOCK_N, N, P, SCALE)
    start_product(w, feature, N, P, first_pair, is_feature, GATE_UP, OVERLAP, PREFETCH)
    sums = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    up_sums = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    # Summed behind the loop only: in it, each sum would make all threads wait for each other.
    squares = tl.zeros([BLOCK_P, BLOCK_M], tl.float32)
    for at in tl.range(
        first_pair, tl.minimum(first_pair + per_split, P), BLOCK_P, num_stages=STAGES
    ):
        is_in = is_feature[:, None] & (at + pair < P)[None, :]
        is_x = is_row[None, :] if EVEN_P else is_row[None, :] & (at + pair < P)[:, None]
        place = _first_features(at, pair, BLOCK_P, SPAN)
        first = tl.load(rows + place[:, None], mask=is_x, other=0.0)
        second = tl.load(rows + SPAN + place[:, None], mask=is_x, other=0.0)
        low, high = _times_columns(
            first, second, columns + place, at + pair < P, SPAN, COLUMNS, not EVEN_P
        )
        block_scale = block_scales + 2 * at // SCALE
        w_pairs = load_tile(weights + at, is_in, not (EVEN_N and EVEN_P))
        sums = _add_tile(sums, w_pairs, low, high, block_scale, SCALE, FAST)
        if GATE_UP:
            up_pairs = load_tile(up + at, is_in, not (EVEN_N and EVEN_P))
            block_scale += num_blocks
            up_sums = _add_tile(up_sums, up_pairs, low, high, block_scale, SCALE, FAST)
        if NORM:
            wide, other = first.to(tl.float32), second.to(tl.float32)
            squares += wide * wide
            squares += other * other
    sums *= _row_scales(scale + feature, is_feature, SCALE)[:, None]
    if GATE_UP:
        up_sums *= _row_scales(scale + N + feature, is_feature, SCALE)[:, None]
    place = row.to(tl.int64)[None, :] * N + feature[:, None]
    mask = is_row[None, :] & is_feature[:, None]
    if NORM and SPLITS > 1:
        _finish_normed(
            sums, tl.sum(squares, 0), bias + feature, is_feature, y, partials, place, mask, row,
            is_row, arrivals, M, N, 2 * P, epsilon, SPLITS, BIAS,
        )  # fmt: skip
    else:
        if NORM:
            root = tl.rsqrt(tl.sum(squares, 0) / (2 * P) + epsilon)[None, :]
            sums *= root
            up_sums *= root
        if BIAS:
            sums += load_bias(bias + feature, is_feature)[:, None]
            if GATE_UP:
                up_sums += load_bias(bias + N + feature, is_feature)[:, None]
        if GATE_UP:
            sums = silu(sums) * up_sums
        finish_product(sums, y, partials, place, mask, arrivals, M * N, SPLITS, ADD)


@jit
def _wide_first_of(pairs, FAST: tl.constexpr):
    """Returns the first feature of each pair in float32."""
    if FAST:
        return tl.inline_asm_elementwise(
            """{
            .reg .b32 both;
            .reg .b16 low, high, pair;
            prmt.b32 both, $2, 0, 0x4420;
            mov.b32 {pair, low}, both;
            cvt.rn.f16x2.e4m3x2 both, pair;
            mov.b32 {low, high}, both;
            cvt.f32.f16 $0, low;
            cvt.f32.f16 $1, high;
            }""",
            "=r,=r,r", [pairs], dtype=tl.float32, is_pure=True, pack=2,
        )  # fmt: skip
    return (pairs & 255).to(tl.uint8).to(tl.float8e4nv, bitcast=True).to(tl.float32)


@jit
def _wide_second_of(pairs, FAST: tl.constexpr):
    """As `_wide_first_of`, for the second."""
    if FAST:
        return tl.inline_asm_elementwise(
            """{
            .reg .b32 both;
            .reg .b16 low, high, pair;
            prmt.b32 both, $2, 0, 0x4431;
            mov.b32 {pair, low}, both;
            cvt.rn.f16x2.e4m3x2 both, pair;
            mov.b32 {low, high}, both;
            cvt.f32.f16 $0, low;
            cvt.f32.f16 $1, high;
            }""",
            "=r,=r,r", [pairs], dtype=tl.float32, is_pure=True, pack=2,
        )  # fmt: skip
    return ((pairs >> 8) & 255).to(tl.uint8).to(tl.float8e4nv, bitcast=True).to(tl.float32)


@jit
def _add_products(sums, pairs, first, second, FAST: tl.constexpr):
    sums += _wide_first_of(pairs, FAST) * first[None, :]
    sums += _wide_second_of(pairs, FAST) * second[None, :]
    return sums


@jit
def _block_scales_of(places, mask, SCALE: tl.constexpr):
    """Returns the scales that features have by their blocks; 1, where rows have scales."""
    return tl.load(places, mask=mask, other=0.0) if SCALE > 1 else 1.0


@jit(do_not_specialize=["M"])
def narrow_row_kernel(
    x, w, columns, bias, scale, y, partials, arrivals, M, N, P, epsilon,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_P: tl.constexpr, STAGES: tl.constexpr,
    SPLITS: tl.constexpr, NORM: tl.constexpr, COLUMNS: tl.constexpr, GATE_UP: tl.constexpr,
    ADD: tl.constexpr, BIAS: tl.constexpr, SCALE: tl.constexpr, SPAN: tl.constexpr,
    EVEN_N: tl.constexpr, EVEN_P: tl.constexpr, FAST: tl.constexpr, OVERLAP: tl.constexpr,
    PREFETCH: tl.constexpr,
):  # fmt: skip
    """As `narrow_rows_kernel`, for one row: products are summed at the end of the loop only."""
    feature = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    pair = tl.arange(0, BLOCK_P)
    per_split = tl.cdiv(P, BLOCK_P * SPLITS) * BLOCK_P
    first_pair = tl.program_id(2) * per_split
    is_feature = feature < N
    weights = w + feature.to(tl.int64)[:, None] * P + pair[None, :]
    up = weights + N.to(tl.int64) * P
    block_scales, num_blocks = _block_scales(scale, BLOCK_N, N, P, SCALE)
    start_product(w, feature, N, P, first_pair, is_feature, GATE_UP, OVERLAP, PREFETCH)
    products = tl.zeros([BLOCK_N, BLOCK_P], tl.float32)
    up_products = tl.zeros([BLOCK_N, BLOCK_P], tl.float32)
    squares = tl.zeros([BLOCK_P], tl.float32)
    for at in tl.range(
        first_pair, tl.minimum(first_pair + per_split, P), BLOCK_P, num_stages=STAGES
    ):
        is_pair = at + pair < P
        is_in = is_feature[:, None] & is_pair[None, :]
        place = (at + pair) // SPAN * (2 * SPAN) + (at + pair) % SPAN
        first = load_tile(x + place, is_pair, not EVEN_P).to(tl.float32)
        second = load_tile(x + SPAN + place, is_pair, not EVEN_P).to(tl.float32)
        if NORM:
            squares += first * first + second * second
        if COLUMNS:
            first *= load_tile(columns + place, is_pair, not EVEN_P).to(tl.float32)
            second *= load_tile(columns + SPAN + place, is_pair, not EVEN_P).to(tl.float32)
        block_scale = block_scales + place // SCALE
        w_pairs = load_tile(weights + at, is_in, not (EVEN_N and EVEN_P))
        factor = _block_scales_of(block_scale, is_pair, SCALE)
        products = _add_products(products, w_pairs, first * factor, second * factor, FAST)
        if GATE_UP:
            up_pairs = load_tile(up + at, is_in, not (EVEN_N and EVEN_P))
            factor = _block_scales_of(block_scale + num_blocks, is_pair, SCALE)
            up_products = _add_products(
                up_products, up_pairs, first * factor, second * factor, FAST
            )
    sums = tl.sum(products, 1)
    up_sums = tl.sum(up_products, 1)
    sums *= _row_scales(scale + feature, is_feature, SCALE)
    if GATE_UP:
        up_sums *= _row_scales(scale + N + feature, is_feature, SCALE)
    if NORM:
        root = tl.rsqrt(tl.sum(squares, 0) / (2 * P) + epsilon)
        sums *= root
        up_sums *= root
    if BIAS:
        sums += load_bias(bias + feature, is_feature)
        if GATE_UP:
            up_sums += load_bias(bias + N + feature, is_feature)
    if GATE_UP:
        sums = silu(sums) * up_sums
    finish_product(sums, y, partials, feature, is_feature, arrivals, N, SPLITS, ADD)
