"""Attention of rows of several tokens over the paged cache, which holds their own keys and values.

Queries of one row stand together in tiles, with all query heads of a key-value head; a tile goes
through the cache from position 0, in blocks that are counted from there. So a query's numbers
depend on its position and context alone, wherever its prompt was cut and whatever is computed
beside it, if `one_loop` is set: then this kernel serves decodes as well.

All sizes are read on the device but the number of tiles, which only has to be enough.

Shape suffixes: T tokens, R rows, N query heads, K key-value heads, D head dimension, P blocks of
the pool.
"""

from dataclasses import dataclass
from typing import Final

from torch import Tensor
from triton import cdiv, jit, next_power_of_2
from triton import language as tl

from antiphon_engine.cuda.kernels.cached_tokens import (
    block_of,
    load_tokens,
    store_heads_at,
    widened,
)
from antiphon_engine.cuda.kernels.heads import norm_weight, rotated_heads, rotation
from antiphon_engine.cuda.kernels.paged_attention import LOG2_E, Heads

MIN_ROW_PLACES: Final = 256
"""Rows among which a program looks for its own: a kernel for each number of them would have to be
compiled while others wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillConfig:
    """How rows are divided among programs."""

    tile_rows: int = 128
    """Queries times heads of a program."""
    block_tokens: int = 128
    """Tokens of the cache of one turn of its loop."""
    num_stages: int = 3
    num_warps: int = 8
    one_loop: bool = False
    """Whether whole blocks are masked like those that queries see a part of: without that, the two
    are compiled apart, and a query's numbers depend on which blocks its tile sees whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillRows:
    """Rows of any number of tokens: see `step_rows.MixedRows`."""

    row_starts_R1: Tensor
    contexts_R: Tensor
    slots_R: Tensor
    block_tables_SM: Tensor
    num_tokens: int
    """Of all rows, at most."""


def attend_rows(
    qkv_TF: Tensor,
    out_TF: Tensor,
    cache: tuple[Tensor, Tensor],
    *,
    heads: Heads,
    rows: PrefillRows,
    config: PrefillConfig,
) -> None:
    """Launches the attention of rows, whose keys and values lie in the cache.

    Args:
        qkv_TF: [T, (N + 2 K) D], queries first and rotated, as `store_heads` leaves them.
        out_TF: [T, N D].
        cache: Keys and values of the layer, as `KvTensors` has them.
        heads: The layer's.
        rows: Which tokens belong together; empty rows take no part.
        config: How they are divided.
    """
    keys, values = cache
    group = heads.num_heads // heads.num_kv_heads
    tile_rows = max(config.tile_rows, next_power_of_2(group))
    num_rows = rows.slots_R.shape[0]
    num_tiles = rows.num_tokens // (tile_rows // group) + num_rows
    _rows_kernel[(num_tiles, heads.num_kv_heads)](
        qkv_TF, out_TF, keys, values, rows.row_starts_R1, rows.contexts_R, rows.slots_R,
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
        ONE_LOOP=config.one_loop,
        num_warps=config.num_warps,
    )  # fmt: skip


@jit
def find_tile(starts, num_rows, tile, TILE_TOKENS: tl.constexpr, ROW_PLACES: tl.constexpr):
    """Returns the row that a tile belongs to, and which of its tiles it is.

    Row r's tiles begin at starts[r] // TILE_TOKENS + r: that leaves each as many as it needs.
    """
    row = tl.arange(0, ROW_PLACES)
    start = tl.load(starts + row, mask=row < num_rows, other=0)
    is_behind = (row < num_rows) & (start // TILE_TOKENS + row <= tile)
    found = tl.sum(is_behind.to(tl.int32), 0) - 1
    return found, tile - tl.load(starts + found) // TILE_TOKENS - found


@jit
def load_queries(
    qkv, start, row_tile, num_tokens, kv_head,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Returns a tile's queries, [TILE, D].

    And of each the token of the row, whether it is one, and where its attention goes.
    """
    GROUP: tl.constexpr = HEADS // KV_HEADS
    TILE_TOKENS: tl.constexpr = TILE // GROUP
    place = tl.arange(0, TILE)
    query = row_tile * TILE_TOKENS + place // GROUP
    is_query = (place < TILE_TOKENS * GROUP) & (query < num_tokens)
    head = kv_head * GROUP + place % GROUP
    token = (start + query).to(tl.int64)
    q_places = qkv + token * ((HEADS + 2 * KV_HEADS) * D) + head * D
    feature = tl.arange(0, D)
    q = tl.load(q_places[:, None] + feature[None, :], mask=is_query[:, None], other=0.0)
    return q, query, is_query, token * (HEADS * D) + head * D


@jit
def begin_sum(TILE: tl.constexpr, D: tl.constexpr):
    """Returns the largest score, weight and sum over no tokens."""
    best = tl.full([TILE], -1.0e30, tl.float32)
    return best, tl.zeros([TILE], tl.float32), tl.zeros([TILE, D], tl.float32)


@jit
def store_attention(out, places, is_query, weight, total, D: tl.constexpr):
    """Puts a tile's attention where `load_queries` says."""
    tl.store(
        out + places[:, None] + tl.arange(0, D)[None, :],
        (total / weight[:, None]).to(out.dtype.element_ty),
        mask=is_query[:, None],
    )


@jit
def softmax_step(scores, best, weight, scale):
    """Returns tokens' shares, what the sum so far fades by, the largest score and the weight."""
    # Scaled behind the maximum: a multiplication and a subtraction become one instruction.
    better = tl.maximum(best, tl.max(scores, 1) * scale)
    shares = tl.exp2(scores * scale - better[:, None])
    fade = tl.exp2(best - better)
    return shares, fade, better, weight * fade + tl.sum(shares, 1)


@jit
def attend_block(
    q, keys, values, table, start, kv_head, position, num_seen, best, weight, total, scale,
    BLOCK: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, TOKENS: tl.constexpr,
    CAUSAL: tl.constexpr,
):  # fmt: skip
    """Goes on with a sum over one block of tokens; CAUSAL: not every query sees all of them."""
    NARROW: tl.constexpr = keys.dtype.element_ty == tl.int16
    token = start + tl.arange(0, TOKENS)
    is_there = token < num_seen
    block = block_of(table, token, is_there, BLOCK, CAUSAL)
    k, k_scale = load_tokens(
        keys, block, token, is_there, kv_head, BLOCK, KV_HEADS, D, CAUSAL, False
    )
    v, v_scale = load_tokens(
        values, block, token, is_there, kv_head, BLOCK, KV_HEADS, D, CAUSAL, True
    )
    k, v = widened(k, q, TOKENS, D, False), widened(v, q, TOKENS, D, True)
    scores = tl.dot(q, k, input_precision="ieee")
    if NARROW:
        scores *= k_scale[None, :]
    if CAUSAL:
        scores = tl.where(token[None, :] <= position[:, None], scores, -1.0e30)
    shares, fade, best, weight = softmax_step(scores, best, weight, scale)
    if NARROW:
        shares *= v_scale[None, :]
    total = tl.dot(shares.to(v.dtype), v, total * fade[:, None], input_precision="ieee")
    return best, weight, total


@jit(
    do_not_specialize=["num_rows"],
    do_not_specialize_on_alignment=["starts", "contexts", "slots", "tables"],
)
def _rows_kernel(
    qkv, out, keys, values, starts, contexts, slots, tables, table_width, num_rows, scale,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr,
    TILE: tl.constexpr, TOKENS: tl.constexpr, ROW_PLACES: tl.constexpr, STAGES: tl.constexpr,
    ONE_LOOP: tl.constexpr,
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
    position = context + query
    num_seen = context + tl.minimum((row_tile + 1) * TILE_TOKENS, num_tokens)
    num_full = 0
    if not ONE_LOOP:
        num_full = (context + row_tile * TILE_TOKENS + 1) // TOKENS * TOKENS
    best, weight, total = begin_sum(TILE, D)
    for at in tl.range(0, num_full, TOKENS, num_stages=STAGES):
        best, weight, total = attend_block(
            q, keys, values, table, at, kv_head, position, num_seen, best, weight, total, scale,
            BLOCK, KV_HEADS, D, TOKENS, False,
        )  # fmt: skip
    for at in tl.range(num_full, num_seen, TOKENS, num_stages=STAGES):
        best, weight, total = attend_block(
            q, keys, values, table, at, kv_head, position, num_seen, best, weight, total, scale,
            BLOCK, KV_HEADS, D, TOKENS, True,
        )  # fmt: skip
    store_attention(out, places, is_query, weight, total, D)


def store_heads(
    qkv_TF: Tensor,
    cache: tuple[Tensor, Tensor],
    *,
    heads: Heads,
    positions_T: Tensor,
    slot_mapping_T: Tensor,
) -> None:
    """Normalises and rotates heads: queries and keys in place; keys and values into the cache.

    Args:
        qkv_TF: [T, (N + 2 K) D], queries first.
        cache: Keys and values of the layer, as `KvTensors` has them.
        heads: The layer's.
        positions_T: int32; where it is negative, nothing is written.
        slot_mapping_T: int64: block * block_tokens + offset.
    """
    keys, values = cache
    num_heads = heads.num_heads + 2 * heads.num_kv_heads
    q_norm = qkv_TF if heads.q_norm_D is None else heads.q_norm_D
    k_norm = qkv_TF if heads.k_norm_D is None else heads.k_norm_D
    _store_kernel[(qkv_TF.shape[0], cdiv(num_heads, _STORED_HEADS))](
        qkv_TF, keys, values, q_norm, k_norm, heads.cosines, heads.sines, positions_T,
        slot_mapping_T, heads.norm_epsilon,
        HEADS=heads.num_heads,
        KV_HEADS=heads.num_kv_heads,
        D=heads.head_dim,
        BLOCK=keys.shape[1],
        NORM=heads.q_norm_D is not None,
        TILE=_STORED_HEADS,
        num_warps=2,
    )  # fmt: skip


_STORED_HEADS = 8
"""Heads of a program of `store_heads`."""


@jit(do_not_specialize_on_alignment=["positions", "slot_mapping"])
def _store_kernel(
    qkv, keys, values, q_norm, k_norm, cosines, sines, positions, slot_mapping, epsilon,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr,
    NORM: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Grid: tokens, tiles of heads."""
    t = tl.program_id(0)
    position = tl.load(positions + t)
    if position < 0:
        return
    head = tl.program_id(1) * TILE + tl.arange(0, TILE)
    feature = tl.arange(0, D)
    element = qkv.dtype.element_ty
    rows = qkv + t.to(tl.int64) * ((HEADS + 2 * KV_HEADS) * D) + head * D
    slot = tl.load(slot_mapping + t)
    block, offset = slot // BLOCK, slot % BLOCK
    kv_head = (head - HEADS) % KV_HEADS
    # A tile may have heads of two kinds; most have one, and do nothing for the others.
    first = tl.program_id(1) * TILE
    is_q = head < HEADS
    is_k = (head >= HEADS) & (head < HEADS + KV_HEADS)
    is_v = (head >= HEADS + KV_HEADS) & (head < HEADS + 2 * KV_HEADS)
    if first < HEADS + KV_HEADS:
        cosine, sine = rotation(cosines, sines, position, D)
        if first < HEADS:
            own, partner = norm_weight(q_norm, D, NORM)
            q = rotated_heads(rows, is_q, own, partner, cosine, sine, epsilon, D, NORM)
            # Every read of a head comes before its write.
            tl.debug_barrier()
            tl.store(rows[:, None] + feature[None, :], q.to(element), mask=is_q[:, None])
        if first + TILE > HEADS:
            own, partner = norm_weight(k_norm, D, NORM)
            k = rotated_heads(rows, is_k, own, partner, cosine, sine, epsilon, D, NORM)
            tl.debug_barrier()
            tl.store(rows[:, None] + feature[None, :], k.to(element), mask=is_k[:, None])
            store_heads_at(k, keys, block, offset, kv_head, is_k, BLOCK, KV_HEADS, D, TILE)
    if first + TILE > HEADS + KV_HEADS:
        v = tl.load(rows[:, None] + feature[None, :], mask=is_v[:, None], other=0.0)
        store_heads_at(v, values, block, offset, kv_head, is_v, BLOCK, KV_HEADS, D, TILE)
