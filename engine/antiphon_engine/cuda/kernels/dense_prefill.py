"""Attention of rows of several tokens, whose own keys and values are read as they were projected.

There they lie in one piece, so the device's copy engine brings them, block by block, and programs
have registers and time for what they multiply; from the cache, each thread would look for its own
part. What was in the cache before, and a row's last tokens, which aren't a whole block, are read
there: in one piece they would bring what comes behind the row.

Shape suffixes as in `prefill_attention`.
"""

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor
from triton import jit, next_power_of_2
from triton import language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from antiphon_engine.cuda.kernels.paged_attention import LOG2_E, Heads
from antiphon_engine.cuda.kernels.prefill_attention import (
    MIN_ROW_PLACES,
    PrefillRows,
    attend_block,
    begin_sum,
    find_tile,
    load_queries,
    softmax_step,
    store_attention,
)

_BLOCK_BYTES: Final = 32 << 10
"""Of a block's keys: those of three blocks, as many values and queries fit a multiprocessor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseConfig:
    """How rows are divided among programs."""

    tile_rows: int = 128
    """Queries times heads of a program."""
    block_tokens: int = 128
    """Tokens of one turn of its loop."""
    num_stages: int = 3
    num_warps: int = 8


def can_attend_dense(
    heads: Heads, qkv_TF: Tensor, cache: tuple[Tensor, Tensor], config: DenseConfig
) -> bool:
    """Returns whether blocks fit, and the cache holds what was projected, bit for bit."""
    block_bytes = config.block_tokens * heads.head_dim * qkv_TF.element_size()
    is_same = all(pool.dtype is qkv_TF.dtype for pool in cache)
    return is_same and qkv_TF.dtype is torch.bfloat16 and block_bytes <= _BLOCK_BYTES


def attend_dense(
    qkv_TF: Tensor,
    out_TF: Tensor,
    cache: tuple[Tensor, Tensor],
    *,
    heads: Heads,
    rows: PrefillRows,
    config: DenseConfig,
) -> None:
    """Launches the attention of rows, whose keys and values lie in the cache and in `qkv_TF`.

    Args:
        qkv_TF: [T, (N + 2 K) D], contiguous: queries first, then keys, both rotated, as
            `store_heads` leaves them.
        out_TF: [T, N D].
        cache: Keys and values of the layer, [P, block, K, D] each, contiguous.
        heads: The layer's.
        rows: Which tokens belong together; empty rows take no part.
        config: How they are divided.
    """
    keys, values = cache
    group = heads.num_heads // heads.num_kv_heads
    tile_rows = max(config.tile_rows, next_power_of_2(group))
    num_rows = rows.slots_R.shape[0]
    num_tiles = rows.num_tokens // (tile_rows // group) + num_rows
    projected = TensorDescriptor.from_tensor(qkv_TF, [config.block_tokens, heads.head_dim])
    _dense_kernel[(num_tiles, heads.num_kv_heads)](
        qkv_TF, projected, out_TF, keys, values, rows.row_starts_R1, rows.contexts_R, rows.slots_R,
        rows.block_tables_SM, rows.block_tables_SM.shape[1], num_rows,
        heads.head_dim**-0.5 * LOG2_E,
        HEADS=heads.num_heads,
        KV_HEADS=heads.num_kv_heads,
        D=heads.head_dim,
        BLOCK=keys.shape[1],
        TILE=tile_rows,
        TOKENS=config.block_tokens,
        ROW_PLACES=max(MIN_ROW_PLACES, next_power_of_2(num_rows)),
        STAGES=config.num_stages,
        num_warps=config.num_warps,
    )  # fmt: skip


@jit
def _attend_projected(
    q, projected, row, at, kv_head, query, best, weight, total, scale,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, TOKENS: tl.constexpr,
    CAUSAL: tl.constexpr,
):  # fmt: skip
    """Goes on with a sum over a block of a row's own tokens; CAUSAL: queries see a part of it."""
    k = projected.load([row + at, (HEADS + kv_head) * D])
    v = projected.load([row + at, (HEADS + KV_HEADS + kv_head) * D])
    scores = tl.dot(q, k.T, input_precision="ieee")
    if CAUSAL:
        token = at + tl.arange(0, TOKENS)
        scores = tl.where(token[None, :] <= query[:, None], scores, -1.0e30)
    shares, fade, best, weight = softmax_step(scores, best, weight, scale)
    total = tl.dot(shares.to(v.dtype), v, total * fade[:, None], input_precision="ieee")
    return best, weight, total


@jit(
    do_not_specialize=["num_rows"],
    do_not_specialize_on_alignment=["starts", "contexts", "slots", "tables"],
)
def _dense_kernel(
    qkv, projected, out, keys, values, starts, contexts, slots, tables, table_width, num_rows,
    scale,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr,
    TILE: tl.constexpr, TOKENS: tl.constexpr, ROW_PLACES: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Grid: tiles, key-value heads. Scores are to the base of 2."""
    TILE_TOKENS: tl.constexpr = TILE // (HEADS // KV_HEADS)
    # The last tiles of a prompt see most: they go first.
    tile = tl.num_programs(0) - 1 - tl.program_id(0)
    kv_head = tl.program_id(1)
    r, row_tile = find_tile(starts, num_rows, tile, TILE_TOKENS, ROW_PLACES)
    start = tl.load(starts + r)
    num_tokens = tl.load(starts + r + 1) - start
    if row_tile * TILE_TOKENS >= num_tokens:
        return
    context = tl.load(contexts + r)
    table = tables + tl.load(slots + r).to(tl.int64) * table_width
    q, query, is_query, places = load_queries(
        qkv, start, row_tile, num_tokens, kv_head, HEADS, KV_HEADS, D, TILE
    )
    best, weight, total = begin_sum(TILE, D)
    # Before the row: whole blocks, and what is left of it.
    num_full = context // TOKENS * TOKENS
    for at in tl.range(0, num_full, TOKENS, num_stages=STAGES):
        best, weight, total = attend_block(
            q, keys, values, table, at, kv_head, query, context, best, weight, total, scale,
            BLOCK, KV_HEADS, D, TOKENS, False,
        )  # fmt: skip
    if num_full < context:
        best, weight, total = attend_block(
            q, keys, values, table, num_full, kv_head, query * 0 + context - 1, context, best,
            weight, total, scale, BLOCK, KV_HEADS, D, TOKENS, True,
        )  # fmt: skip
    # The row itself: blocks that all queries see, those that they see a part of, and the last.
    num_seen = tl.minimum((row_tile + 1) * TILE_TOKENS, num_tokens)
    num_clear = (row_tile * TILE_TOKENS + 1) // TOKENS * TOKENS
    num_whole = tl.minimum(tl.cdiv(num_seen, TOKENS), num_tokens // TOKENS) * TOKENS
    for at in tl.range(0, num_clear, TOKENS, num_stages=STAGES):
        best, weight, total = _attend_projected(
            q, projected, start, at, kv_head, query, best, weight, total, scale,
            HEADS, KV_HEADS, D, TOKENS, False,
        )  # fmt: skip
    for at in tl.range(num_clear, num_whole, TOKENS, num_stages=STAGES):
        best, weight, total = _attend_projected(
            q, projected, start, at, kv_head, query, best, weight, total, scale,
            HEADS, KV_HEADS, D, TOKENS, True,
        )  # fmt: skip
    if num_whole < num_seen:
        best, weight, total = attend_block(
            q, keys, values, table, context + num_whole, kv_head, context + query,
            context + num_seen, best, weight, total, scale, BLOCK, KV_HEADS, D, TOKENS, True,
        )  # fmt: skip
    store_attention(out, places, is_query, weight, total, D)
