"""What programs do that share a row of one token: attend to a piece of it, and hand that over.

Shape suffixes as in `paged_attention`.
"""

from triton import jit
from triton import language as tl

from antiphon_engine.cuda.kernels.cache_tiles import attend_tiles
from antiphon_engine.cuda.kernels.cached_tokens import (
    attend_tokens,
    prefetch_tokens,
    store_new,
)
from antiphon_engine.cuda.kernels.heads import norm_weight, rotated_heads, rotation
from antiphon_engine.cuda.kernels.launching import wait_for_previous


@jit
def attend_piece(
    qkv, keys, values, key_tiles, value_tiles, q_norm, k_norm, cosines, sines, table, b, kv_head,
    position, first, end, has_new, epsilon, scale,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, ROWS: tl.constexpr, D: tl.constexpr,
    BLOCK: tl.constexpr, NORM: tl.constexpr, TOKENS: tl.constexpr, STAGES: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    """Returns the largest score, weight and sum over a row's tokens from `first` to `end`.

    With `has_new`, the row's new token is stored and seen too. Waits for the kernel before. Where
    there are tiles (None: there aren't), whole ones of TOKENS are read so, from a multiple of that.
    """
    GROUP: tl.constexpr = HEADS // KV_HEADS
    row = tl.arange(0, ROWS)
    if OVERLAP and key_tiles is None:
        token = first + tl.arange(0, TOKENS)
        prefetch_tokens(keys, table, token, token < end, kv_head, BLOCK, KV_HEADS, D)
        prefetch_tokens(values, table, token, token < end, kv_head, BLOCK, KV_HEADS, D)
    cosine, sine = rotation(cosines, sines, position, D)
    q_own, q_partner = norm_weight(q_norm, D, NORM)
    k_own, k_partner = norm_weight(k_norm, D, NORM)
    wait_for_previous(OVERLAP)
    qkv_row = qkv + b * (HEADS + 2 * KV_HEADS) * D
    q = rotated_heads(
        qkv_row + (kv_head * GROUP + row) * D, row < GROUP, q_own, q_partner, cosine, sine,
        epsilon, D, NORM,
    ).to(qkv.dtype.element_ty)  # fmt: skip
    best = tl.full([ROWS], -1.0e30, tl.float32)
    weight = tl.zeros([ROWS], tl.float32)
    total = tl.zeros([ROWS, D], tl.float32)
    if has_new:
        key, value = store_new(
            qkv_row, keys, values, table, position, k_own, k_partner, cosine, sine, epsilon,
            kv_head, HEADS, KV_HEADS, D, BLOCK, NORM,
        )  # fmt: skip
        best = tl.sum(q.to(tl.float32) * key.to(tl.float32), 1) * scale
        weight += 1.0
        total += value.to(tl.float32)
    if key_tiles is not None:
        num_tiles = tl.maximum(end - first, 0) // TOKENS
        best, weight, total = attend_tiles(
            q, key_tiles, value_tiles, table, kv_head, first, num_tiles, best, weight, total, scale,
            BLOCK, D, TOKENS, ROWS, STAGES,
        )  # fmt: skip
        first += num_tiles * TOKENS
    return attend_tokens(
        q, keys, values, table, kv_head, first, end, best, weight, total, scale,
        BLOCK, KV_HEADS, D, TOKENS, ROWS, STAGES if key_tiles is None else 1,
    )  # fmt: skip


@jit
def row_places(out, b, kv_head, HEADS: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr,
               D: tl.constexpr):  # fmt: skip
    """Returns where a row's attention goes: [ROWS, D]."""
    head = kv_head * GROUP + tl.arange(0, ROWS)
    return out + (b * HEADS + head)[:, None] * D + tl.arange(0, D)[None, :]


@jit
def leave_part(
    best, weight, total, sums, largest, weights, cell, arrival, num_parts,
    GROUP: tl.constexpr, ROWS: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """Leaves what a program has of a row in a cell; returns whether all parts are there now."""
    row = tl.arange(0, ROWS)
    is_row = row < GROUP
    at = cell * GROUP + row
    tl.store(sums + at[:, None] * D + tl.arange(0, D)[None, :], total, mask=is_row[:, None])
    tl.store(largest + at, best, mask=is_row)
    tl.store(weights + at, weight, mask=is_row)
    # All of this program's stores come before its arrival, and all loads behind the last one.
    tl.debug_barrier()
    num_before = tl.atomic_add(arrival, 1, sem="acq_rel")
    tl.debug_barrier()
    return num_before == num_parts - 1
