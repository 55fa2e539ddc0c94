"""What attention kernels do with the cache: find tokens in it, put them there, read tiles of them.

Keys and values lie there in the rows' type, [P, block, K, D]. Or they are narrow: 8-bit floats
(e4m3), with a scale for each head of each token, so that no token's numbers depend on another's.
Then a block has its values first, [block, K, D / 2] pairs of features that follow each other, and
behind them its scales, float32 [K, block]: it is copied as a whole, wherever it goes. Kernels know
by the pointer which of the two it is: narrow ones are 16-bit integers, [P, block, K, D / 2 + 2] as
far as their number goes.

A tile's scales are applied where it costs least: those of keys to scores, those of values to what
they are weighted with. Products are of the rows' type, in which e4m3 is exact.

Shape suffixes: P blocks of the pool, K key-value heads, D head dimension, N heads of a tile.
"""

from triton import jit
from triton import language as tl

from antiphon_engine.cuda.kernels.heads import rotated_heads
from antiphon_engine.cuda.kernels.launching import prefetch
from antiphon_engine.cuda.kernels.narrow_pairs import (
    LARGEST,
    LEAST,
    first_of,
    pairs_of,
    second_of,
)

_LARGEST = tl.constexpr(LARGEST)
_LEAST = tl.constexpr(LEAST)


@jit
def block_of(table, token, mask, BLOCK: tl.constexpr, MASKED: tl.constexpr):
    """Returns the blocks that hold tokens, int64."""
    place = table + token // BLOCK
    return (tl.load(place, mask=mask, other=0) if MASKED else tl.load(place)).to(tl.int64)


@jit
def token_places(
    cache, block, token, kv_head, BLOCK: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr
):
    """Returns where tokens' heads begin in the cache, int64, in its elements."""
    offset = token % BLOCK
    if cache.dtype.element_ty == tl.int16:
        pairs = (offset * KV_HEADS + kv_head) * (D // 2)
        place = block * (BLOCK * KV_HEADS * (D // 2 + 2)) + pairs
    else:
        place = ((block * BLOCK + offset) * KV_HEADS + kv_head) * D
    return place


@jit
def scale_places(
    cache, block, token, kv_head, BLOCK: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr
):
    """Returns where the scales of tokens' heads lie in a narrow cache."""
    scales = cache.to(tl.pointer_type(tl.float32), bitcast=True)
    behind = BLOCK * KV_HEADS * (D // 4) + kv_head * BLOCK + token % BLOCK
    return scales + block * (BLOCK * KV_HEADS * (D // 4 + 1)) + behind


@jit
def prefetch_tokens(
    cache, table, token, mask, kv_head, BLOCK: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr
):
    """Has tokens brought into the L2 cache."""
    line = tl.arange(0, (D + 63) // 64)[None, :] * 64
    block = block_of(table, token, mask, BLOCK, True)
    if cache.dtype.element_ty == tl.int16:
        line = tl.arange(0, (D + 127) // 128)[None, :] * 64
    at = token_places(cache, block, token, kv_head, BLOCK, KV_HEADS, D)
    prefetch(cache + at[:, None] + line)


@jit
def halves_of(x, ROWS: tl.constexpr, D: tl.constexpr):
    """Returns the even features of rows and the odd ones: [ROWS, D / 2] each."""
    return tl.split(tl.reshape(x, [ROWS, D // 2, 2]))


@jit
def joined(even, odd, ROWS: tl.constexpr, D: tl.constexpr):
    """Returns what `halves_of` was given."""
    return tl.reshape(tl.join(even, odd), [ROWS, D])


@jit
def store_heads_at(
    x_ND, cache, block, token, kv_head, mask_N,
    BLOCK: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """Puts heads [N, D] into the cache, where the mask is, and returns them as they lie there.

    Blocks (int64), tokens and heads are one for all of them, or [N].
    """
    at = token_places(cache, block, token, kv_head, BLOCK, KV_HEADS, D)
    if cache.dtype.element_ty == tl.int16:
        wide = x_ND.to(tl.float32)
        scale = tl.maximum(tl.max(tl.abs(wide), 1), _LEAST) / _LARGEST
        even, odd = halves_of(wide / scale[:, None], N, D)
        pairs = pairs_of(even, odd)
        place = cache + at[:, None] + tl.arange(0, D // 2)[None, :]
        tl.store(place, pairs, mask=mask_N[:, None])
        tl.store(scale_places(cache, block, token, kv_head, BLOCK, KV_HEADS, D), scale, mask=mask_N)
        even, odd = first_of(pairs, wide, False), second_of(pairs, wide, False)
        stored = joined(even, odd, N, D) * scale[:, None]
    else:
        stored = x_ND.to(cache.dtype.element_ty)
        place = cache + at[:, None] + tl.arange(0, D)[None, :]
        tl.store(place, stored, mask=mask_N[:, None])
    return stored


@jit
def store_new(
    qkv_row, keys, values, table, position, own_D, partner_D, cosine_D, sine_D, epsilon, kv_head,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr,
    NORM: tl.constexpr,
):  # fmt: skip
    """Puts the row's key and value into the cache and returns them as they lie there: [1, D]."""
    one = tl.arange(0, 1)
    is_one = one == 0
    token = position + one
    block = block_of(table, token, is_one, BLOCK, True)
    key = rotated_heads(
        qkv_row + (HEADS + kv_head + one) * D, is_one, own_D, partner_D, cosine_D, sine_D,
        epsilon, D, NORM,
    )  # fmt: skip
    at = (HEADS + KV_HEADS + kv_head + one[:, None]) * D + tl.arange(0, D)[None, :]
    value = tl.load(qkv_row + at)
    key = store_heads_at(key, keys, block, token, kv_head, is_one, BLOCK, KV_HEADS, D, 1)
    value = store_heads_at(value, values, block, token, kv_head, is_one, BLOCK, KV_HEADS, D, 1)
    return key, value


@jit
def load_tokens(
    cache, block, token, mask, kv_head,
    BLOCK: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, MASKED: tl.constexpr,
    TOKENS_FIRST: tl.constexpr,
):  # fmt: skip
    """Returns a tile of the cache and its scales.

    The tile is [tokens, D], or [D, tokens] unless TOKENS_FIRST; pairs where the cache is narrow,
    D / 2 then, with float32 scales [tokens]. Else its scales are 1.
    """
    at = token_places(cache, block, token, kv_head, BLOCK, KV_HEADS, D)
    if cache.dtype.element_ty == tl.int16:
        feature = tl.arange(0, D // 2)
        place = scale_places(cache, block, token, kv_head, BLOCK, KV_HEADS, D)
        scale = tl.load(place, mask=mask, other=0.0) if MASKED else tl.load(place)
    else:
        feature = tl.arange(0, D)
        scale = 1.0
    if TOKENS_FIRST:
        places = cache + at[:, None] + feature[None, :]
        tile = tl.load(places, mask=mask[:, None], other=0) if MASKED else tl.load(places)
    else:
        places = cache + at[None, :] + feature[:, None]
        tile = tl.load(places, mask=mask[None, :], other=0) if MASKED else tl.load(places)
    return tile, scale


@jit
def widened(tile, like, TOKENS: tl.constexpr, D: tl.constexpr, TOKENS_FIRST: tl.constexpr):
    """Returns a tile as `load_tokens` returns it, narrow or not, in the type of `like`.

    For matrix instructions that take it from shared memory, where it has to be written anyway.
    """
    if tile.dtype == tl.int16:
        FAST: tl.constexpr = like.dtype == tl.bfloat16
        both = tl.join(first_of(tile, like, FAST), second_of(tile, like, FAST))
        if TOKENS_FIRST:
            wide = tl.reshape(both, [TOKENS, D])
        else:
            wide = tl.reshape(tl.permute(both, (0, 2, 1)), [D, TOKENS])
    else:
        wide = tile
    return wide


@jit
def _scores_of(q, odd_q, k, scale):
    """Returns products of queries with a tile of keys, [D, tokens].

    Narrow tiles are taken apart into even features and odd ones, without being moved: for matrix
    instructions that take them from registers. Then queries are so too.
    """
    if k.dtype == tl.int16:
        FAST: tl.constexpr = q.dtype == tl.bfloat16
        scores = tl.dot(q, first_of(k, q, FAST), input_precision="ieee")
        scores = tl.dot(odd_q, second_of(k, q, FAST), scores, input_precision="ieee")
        scores *= scale[None, :]
    else:
        scores = tl.dot(q, k, input_precision="ieee")
    return scores


@jit
def _add_values(total, odd_total, fade, shares, v, scale, like):
    """Returns sums, faded, with a tile of values added, [tokens, D], each by its share.

    As in `_scores_of`, sums of odd features stand apart where tiles are narrow.
    """
    total = total * fade[:, None]
    if v.dtype == tl.int16:
        FAST: tl.constexpr = like.dtype == tl.bfloat16
        parts = (shares * scale[None, :]).to(like.dtype)
        total = tl.dot(parts, first_of(v, like, FAST), total, input_precision="ieee")
        odd_total = odd_total * fade[:, None]
        odd_total = tl.dot(parts, second_of(v, like, FAST), odd_total, input_precision="ieee")
    else:
        total = tl.dot(shares.to(v.dtype), v, total, input_precision="ieee")
    return total, odd_total


@jit
def attend_tokens(
    q, keys, values, table, kv_head, first, end, best, weight, total, scale,
    BLOCK: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, TOKENS: tl.constexpr,
    ROWS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Goes on with a sum over the tokens from `first` to `end` of the cache."""
    NARROW: tl.constexpr = keys.dtype.element_ty == tl.int16
    odd_q, odd_total = q, weight
    if NARROW:
        q, odd_q = halves_of(q, ROWS, D)
        total, odd_total = halves_of(total, ROWS, D)
    for start in tl.range(first, end, TOKENS, num_stages=STAGES):
        token = start + tl.arange(0, TOKENS)
        seen = token < end
        block = block_of(table, token, seen, BLOCK, True)
        k, k_scale = load_tokens(keys, block, token, seen, kv_head, BLOCK, KV_HEADS, D, True, False)
        v, v_scale = load_tokens(
            values, block, token, seen, kv_head, BLOCK, KV_HEADS, D, True, True
        )
        scores = _scores_of(q, odd_q, k, k_scale) * scale
        scores = tl.where(seen[None, :], scores, -1.0e30)
        better = tl.maximum(best, tl.max(scores, 1))
        shares = tl.exp2(scores - better[:, None])
        fade = tl.exp2(best - better)
        weight = weight * fade + tl.sum(shares, 1)
        total, odd_total = _add_values(total, odd_total, fade, shares, v, v_scale, q)
        best = better
    if NARROW:
        total = joined(total, odd_total, ROWS, D)
    return best, weight, total
